# SPDX-License-Identifier: Apache-2.0
"""Tests of a command's configuration files and their errors."""

import argparse
import os
import types

import fixtures
from oslo_config import cfg
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import configuration
from tests.unit.cmd import base as cmd_base


class FilesTest(cmd_base.ConfiguredTestCase):

    def test_missing_configuration_file_is_named(self):
        self.assertIn('/nowhere/x.conf', self.refused(
            '--config-file', '/nowhere/x.conf', 'host', 'list'))

    def test_malformed_option_is_named(self):
        path = self.write('x.conf', '[database]', 'connection = sqlite://',
                          'max_retries = often')
        err = self.refused('--config-file', path, 'db', 'sync')
        self.assertIn('max_retries', err)
        self.assertIn('often', err)

    def test_file_of_nova_never_gives_the_database(self):
        nova = os.path.join(self.folder, 'nova.sqlite')
        self.write('NOVA_CONFIG_FILE', '[database]',
                   f'connection = sqlite:///{nova}')
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.api.DEFAULT_CONNECTION',
            f'sqlite:///{self.folder}/gpgpu.sqlite'))
        for command in ('sync', 'version'):
            self.assertIn('Option [database] connection: it is not set',
                          self.refused('db', command))
        self.assertEqual(
            ['NOVA_CONFIG_FILE'], os.listdir(self.folder))


class _Command(configuration.ConfiguredCommand):

    def take_action(self, parsed_args):
        raise NotImplementedError


class CommandTest(cmd_base.ConfiguredTestCase):

    def read(self, *defaults, given=None, **options):
        return _Command(types.SimpleNamespace(
            given_conf=given, options=argparse.Namespace(**{
                'config_file': None, 'config_dir': None, **options})),
            None).configuration(*defaults)

    def file(self, name, seconds):
        return self.write(name, '[gpgpu]', f'rpc_timeout = {seconds}')

    def test_first_default_that_exists_is_read(self):
        first, second = self.file('a', 11), self.file('b', 12)
        conf = self.read(f'{self.folder}/none', first, second)
        self.assertEqual(11, conf.gpgpu.rpc_timeout)

    def test_named_files_replace_the_defaults(self):
        first, second = self.file('a', 11), self.file('b', 12)
        conf = self.read(first, config_file=[second])
        self.assertEqual(12, conf.gpgpu.rpc_timeout)

    def test_last_of_several_named_files_counts(self):
        files = [self.file('a', 11), self.file('b', 12)]
        self.assertEqual(
            12, self.read(config_file=files).gpgpu.rpc_timeout)

    def test_directory_is_read_beside_the_default(self):
        folder = f'{self.folder}/conf.d'
        os.mkdir(folder)
        self.file('conf.d/x.conf', 12)
        conf = self.read(self.file('a', 11), config_dir=[folder])
        self.assertEqual(12, conf.gpgpu.rpc_timeout)

    def test_given_configuration_is_used_as_it_is(self):
        given = cfg.ConfigOpts()
        self.assertIs(given, self.read(self.file('a', 11), given=given))

    def test_missing_defaults_leave_the_options_as_they_are(self):
        self.assertEqual([], self.read(f'{self.folder}/none').config_file)


class MessageTest(base.BaseTestCase):

    def test_error_of_the_configuration_is_its_first_line(self):
        self.assertEqual('wrong', configuration.message(
            cfg.Error('wrong\nx')))

    def test_error_of_the_plugin_is_its_message(self):
        self.assertEqual('host h9 does not exist', configuration.message(
            exception.NotFound(kind='host', name='h9')))
