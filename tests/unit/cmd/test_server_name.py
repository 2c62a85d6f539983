# SPDX-License-Identifier: Apache-2.0
"""Tests of names of servers that need no Nova."""

from gpgpu_plugin.cmd import names
from tests.unit.cmd import base
from tests.unit.cmd import test_imports


class ServerNameTest(base.CommandTestCase):

    def test_uuid_in_any_form_needs_no_nova(self):
        def connect(cloud):
            raise AssertionError('Nova was asked')
        self.claim()
        for text in (base.INSTANCE, base.INSTANCE.replace('-', '').upper()):
            self.assertEqual(1, len(self.json(
                'device', 'list', '--instance', text, connect=connect)))

    def test_name_that_is_left_out_is_none(self):
        self.assertIsNone(names.optional_server_uuid(None, None))

    def test_uuid_loads_no_slow_library(self):
        self.assertNotIn('openstack', test_imports.imported(
            'from gpgpu_plugin.cmd import names\n'
            f'names.server_uuid_of(None, {base.INSTANCE!r})'))
