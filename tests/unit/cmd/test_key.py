# SPDX-License-Identifier: Apache-2.0
"""Tests of ``gpgpu-manage key``."""

import json
import os
import pathlib

import fixtures
from oslo_config import cfg
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.rpc import signature
from tests.unit.cmd import base as cmd_base
from tests.unit.db import base as db_base


class KeyTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.keys = self.folder / 'keys'
        self.path = self.folder / 'x.conf'
        self.path.write_text(
            f'[database]\nconnection = sqlite:///{self.folder}/x.sqlite\n'
            f'[gpgpu]\nkeys_path = {self.keys}\n')
        self.done('db', 'sync')

    def manage(self, *arguments):
        return cmd_base.run('--config-file', str(self.path), *arguments)

    def done(self, *arguments):
        result = self.manage(*arguments)
        self.assertEqual(0, result.code, result.err)
        return result.out

    def refused(self, *arguments):
        result = self.manage(*arguments)
        self.assertEqual((1, ''), (result.code, result.out))
        return result.err

    def conf(self):
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        api.register_opts(conf)
        conf(['--config-file', str(self.path)], project='gpgpu')
        return conf

    def listed(self):
        return [tuple(row.values()) for row in json.loads(
            self.done('key', 'list', '-f', 'json'))]

    def test_keys_of_a_cloud_are_made_and_used(self):
        self.assertEqual(f'{self.keys}/master.key\n',
                         self.done('key', 'init'))
        self.assertEqual(f'{self.keys}/operator.key\n',
                         self.done('key', 'create', 'operator', 'root'))
        host = self.folder / 'h1.key'
        self.assertEqual(f'{host}\n', self.done(
            'key', 'create', 'host', 'h1', '--file', str(host)))
        for path in (self.keys / 'master.key', self.keys / 'operator.key',
                     host):
            self.assertEqual(0o600, path.stat().st_mode & 0o777)
        master = signature.parse_master(
            (self.keys / 'master.key').read_text())
        self.assertEqual(
            master.derive(context.CallerKind.HOST, 'h1',
                          self.listed()[0][2]),
            signature.parse_caller(host.read_text()))
        self.assertEqual(
            [('host', 'h1'), ('operator', 'root')],
            [row[:2] for row in self.listed()])

    def test_file_that_exists_is_kept_and_uses_up_no_number(self):
        self.done('key', 'init')
        self.done('key', 'create', 'host', 'h1')
        kept = {path: path.read_text() for path in self.keys.iterdir()}
        self.assertIn('a key is never overwritten',
                      self.refused('key', 'init'))
        self.assertIn('a key is never overwritten',
                      self.refused('key', 'create', 'host', 'h1'))
        self.assertEqual(kept, {path: path.read_text()
                                for path in self.keys.iterdir()})
        self.assertEqual(1, len(self.listed()))

    def test_folder_in_which_nothing_can_be_written_uses_up_no_number(self):
        self.done('key', 'init')
        self.refused('key', 'create', 'host', 'h1', '--file',
                     '/proc/none/h1.key')
        self.assertEqual([], self.listed())

    def test_database_without_tables_is_refused(self):
        self.path.write_text(self.path.read_text().replace(
            'x.sqlite', 'new.sqlite'))
        self.done('key', 'init')
        for arguments in (('list',), ('create', 'host', 'h1'),
                          ('revoke', 'host', 'h1')):
            self.assertIn('run "gpgpu-manage db sync"',
                          self.refused('key', *arguments))
        self.assertEqual(['master.key'], os.listdir(self.keys))

    def test_missing_master_key_says_how_to_make_it(self):
        self.assertIn('gpgpu-manage key init',
                      self.refused('key', 'create', 'host', 'h1'))
        self.assertEqual([], self.listed())

    def test_keys_of_several_callers_are_made_in_a_folder(self):
        self.done('key', 'init')
        new = self.folder / 'new'
        self.assertEqual(f'{new}/h1.key\n{new}/h2.key\n', self.done(
            'key', 'create', 'host', 'h1', 'h2', 'h1', '--dir', str(new)))
        (new / 'h1.key').unlink()
        self.assertIn('h2.key', self.refused(
            'key', 'create', 'host', 'h1', 'h2', '--dir', str(new)))
        self.assertEqual(['h2.key'], os.listdir(new))
        self.assertEqual(2, len(self.listed()))

    def test_names_without_files_and_files_without_names_are_refused(self):
        self.done('key', 'init')
        for arguments in (('h1', 'h2'), (), ('--all',), ('h1', '--all'),
                          ('../h1', '--dir', 'x')):
            self.refused('key', 'create', 'host', *arguments)
        self.refused('key', 'create', 'operator', '--all', '--dir', 'x')
        self.assertEqual(2, self.manage(
            'key', 'create', 'host', 'h1', '--dir', 'x', '--file', 'y').code)
        self.assertEqual([], self.listed())

    def test_keys_of_all_hosts_are_made(self):
        self.done('key', 'init')
        db = api.Database(self.conf())
        with db.writer() as session:
            for name, deleted in (('h1', 0), ('h2', 0), ('h3', 3)):
                db_base.host(name, deleted=deleted).insert(session)
        new = self.folder / 'new'
        self.done('key', 'create', 'host', '--all', '--dir', str(new))
        self.assertEqual({'h1.key', 'h2.key'}, set(os.listdir(new)))

    def test_master_key_is_replaced_step_by_step(self):
        path = self.keys / 'master.key'
        self.done('key', 'init')
        self.done('key', 'create', 'operator', 'root')
        old, = path.read_text().splitlines()
        self.done('key', 'rotate')
        new, kept = path.read_text().splitlines()
        self.assertEqual(old, kept)
        self.assertEqual(0o600, path.stat().st_mode & 0o777)
        self.done('key', 'create', 'operator', 'root', '--file',
                  str(self.folder / 'k'))
        [(_, _, number, *_, first), (*_, second)] = self.listed()
        self.assertEqual(('old', 'new'), (first, second))
        self.assertIn(f'operator root {number}',
                      self.refused('key', 'rotate', '--finish'))
        self.done('key', 'revoke', 'operator', 'root', '--number', str(number))
        self.done('key', 'rotate', '--finish')
        self.assertEqual([new], path.read_text().splitlines())
        self.assertEqual(['unknown', 'new'],
                         [row[-1] for row in self.listed()])

    def test_wrong_name_and_kind_are_refused(self):
        self.done('key', 'init')
        self.assertIn('without space, slash and colon',
                      self.refused('key', 'create', 'host', 'h 1'))
        self.assertEqual(2, self.manage('key', 'create', 'guest', 'x').code)
        self.assertEqual(['master.key'], os.listdir(self.keys))

    def test_revoked_keys_are_listed_with_their_time(self):
        self.done('key', 'init')
        for number in range(3):
            self.done('key', 'create', 'host', 'h1', '--file',
                      str(self.folder / str(number)))
        first, second, third = (row[2] for row in self.listed())
        self.assertEqual(f'revoked {second} of host h1\n', self.done(
            'key', 'revoke', 'host', 'h1', '--number', str(second)))
        self.assertEqual([True, False, True],
                         [row[4] == '-' for row in self.listed()])
        self.assertIn(
            f'valid key of host h1 with the number {second} does not exist',
            self.refused('key', 'revoke', 'host', 'h1', '--number',
                         str(second)))
        self.assertEqual(f'revoked {first}, {third} of host h1\n',
                         self.done('key', 'revoke', 'host', 'h1'))
        self.assertIn('valid key of host h1 does not exist',
                      self.refused('key', 'revoke', 'host', 'h1'))

    def test_second_master_key_keeps_the_callers_of_the_first(self):
        self.done('key', 'init')
        path = self.keys / 'master.key'
        path.write_text(
            f'{signature.new_master().to_text()}\n{path.read_text()}')
        self.done('key', 'create', 'scheduler', 's')
        new, _ = signature.read_masters(self.conf())
        self.assertEqual(new.id, signature.read_caller_key(
            self.conf(), context.CallerKind.SCHEDULER).master_id)
