# SPDX-License-Identifier: Apache-2.0
"""Tests of where ``gpgpu-host list`` reads which instances use functions."""

import argparse
import pathlib
import types
from unittest import mock

import fixtures
from oslo_config import cfg

from gpgpu_plugin.cmd import designation
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from tests.unit.cmd import base
from tests.unit.compute import test_assignments


class ReadTest(base.ConfiguredTestCase):

    def setUp(self):
        super().setUp()
        self.state = f'{self.folder}/state'
        self.command = mock.Mock()
        self.command.manage.given_conf = None
        self.command.app = types.SimpleNamespace(options=argparse.Namespace(
            config_file=None, config_dir=None))
        self.write('NOVA_CONFIG_FILE', '[gpgpu_compute]',
                   f'state_path = {self.state}')

    def add(self):
        assignment_file.AssignmentFile(f'{self.state}/h1.json').add('i1', [
            test_assignments.make_assignment(stable_id='a')])

    def doubted(self, text):
        """Check that a remark says what is in doubt; return the instances."""
        instances, doubt = designation.read_instances(self.command)
        self.assertIn(text, doubt)
        self.assertIn(text, self.command.note.call_args.args[0])
        return instances

    def test_instances_are_read_where_nova_compute_writes_them(self):
        self.add()
        self.assertEqual(({'a': ['i1']}, None),
                         designation.read_instances(self.command))
        self.command.note.assert_not_called()

    def test_given_configuration_is_used(self):
        self.add()
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        conf.set_override(
            'state_path', f'{self.folder}/other', 'gpgpu_compute')
        self.command.manage.given_conf = conf
        instances, doubt = designation.read_instances(self.command)
        self.assertEqual({}, instances)
        self.assertIn(f'{self.folder}/other', doubt)

    def test_machine_without_the_plugin_gets_no_remark(self):
        instances, doubt = designation.read_instances(self.command)
        self.assertEqual({}, instances)
        self.assertIn(self.state, doubt)
        self.command.note.assert_not_called()

    def test_configuration_that_cannot_be_read_leaves_all_unknown(self):
        self.add()
        self.write('NOVA_CONFIG_FILE', 'nonsense')
        self.assertEqual({}, self.doubted('NOVA_CONFIG_FILE'))
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.cmd.configuration.open',
            mock.Mock(side_effect=PermissionError(13, 'Permission denied'))))
        self.assertEqual({}, self.doubted('Permission denied'))

    def test_record_that_cannot_be_read_hides_no_other(self):
        self.add()
        pathlib.Path(self.state, 'h0.json').write_text('{', encoding='ascii')
        self.assertEqual({'a': ['i1']}, self.doubted('h0.json'))
