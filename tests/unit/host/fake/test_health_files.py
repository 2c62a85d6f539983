# SPDX-License-Identifier: Apache-2.0
"""Tests of the files of fake machines that show health."""

import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin.host.fake import kernel


class HealthFilesTest(base.BaseTestCase):

    def test_files_have_the_form_of_the_kernel(self):
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        kernel.write_link(folder, 8)
        kernel.write_errors(folder, fatal=1)
        self.assertEqual({
            'current_link_width': '8\n', 'max_link_width': '16\n',
            'aer_dev_fatal': 'Undefined 0\nData Link Protocol 1\n'
                             'TOTAL_ERR_FATAL 1\n',
            'aer_dev_nonfatal': 'Undefined 0\nCompletion Timeout 0\n'
                                'TOTAL_ERR_NONFATAL 0\n',
            'aer_dev_correctable': 'Undefined 0\nReceiver Error 0\n'
                                   'TOTAL_ERR_COR 0\n'}, {
            str(path.relative_to(folder)): path.read_text()
            for path in folder.rglob('*') if path.is_file()})
