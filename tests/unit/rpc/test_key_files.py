# SPDX-License-Identifier: Apache-2.0
"""Tests of files with keys."""

import errno
import os
import pathlib

import fixtures
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.rpc import signature
from tests.fixtures import conductor as conductor_fixture

Kind = context.CallerKind


class KeyFilesTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.conf.clear_override('sign_calls', 'gpgpu')
        self.folder = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'new', 'keys')
        self.conf.set_override('keys_path', str(self.folder), 'gpgpu')
        self.master = signature.new_master()

    def refused(self, function, *args):
        return str(self.assertRaises(
            exception.ConfigInvalid, function, self.conf, *args))

    def write(self, kind=Kind.HOST, name='h1', number=1):
        key = self.master.derive(kind, name, number)
        signature.write_key(signature.caller_path(self.conf, kind),
                            key.to_text)
        return key

    def test_calls_are_signed_unless_they_stay_in_the_process(self):
        self.assertFalse(signature.is_required(self.conf))
        for url, expected in (('rabbit://u:p@h/', True),
                              ('kombu+memory:///', False)):
            self.conf.set_override('transport_url', url, 'gpgpu')
            self.assertIs(expected, signature.is_required(self.conf))
            for said in (True, False):
                self.conf.set_override('sign_calls', said, 'gpgpu')
                self.assertIs(said, signature.is_required(self.conf))
            self.conf.clear_override('sign_calls', 'gpgpu')

    def test_key_is_written_for_its_owner_alone_and_read_again(self):
        key = self.write()
        path = self.folder / 'host.key'
        self.assertEqual(0o600, path.stat().st_mode & 0o777)
        self.assertEqual(key, signature.read_caller_key(self.conf, Kind.HOST))
        self.assertEqual(key,
                         signature.read_caller_key(self.conf, Kind.HOST, 'h1'))

    def test_folder_is_reached_by_each_service_whatever_the_umask(self):
        before = os.umask(0o077)
        try:
            self.write()
        finally:
            os.umask(before)
        for folder in (self.folder, self.folder.parent):
            self.assertEqual(0o755, folder.stat().st_mode & 0o777)

    def test_file_that_the_service_may_not_read_says_who_must_own_it(self):
        self.write()
        self.useFixture(fixtures.MockPatchObject(
            pathlib.Path, 'open', side_effect=PermissionError(
                errno.EACCES, 'Permission denied')))
        said = self.refused(signature.read_caller_key, Kind.HOST)
        self.assertIn('Permission denied; let the user of this service', said)

    def test_key_is_never_overwritten(self):
        key = self.write()
        self.assertRaises(FileExistsError, self.write, number=2)
        self.assertEqual(key, signature.read_caller_key(self.conf, Kind.HOST))

    def test_link_in_the_place_of_a_key_is_not_followed(self):
        self.folder.mkdir(parents=True)
        aim = self.folder.parent / 'aim'
        (self.folder / 'host.key').symlink_to(aim)
        self.assertRaises(OSError, self.write)
        self.assertFalse(aim.exists())

    def test_missing_key_says_how_to_make_it(self):
        said = self.refused(signature.read_caller_key, Kind.HOST, 'h1')
        for words in ('[gpgpu] keys_path', 'host.key',
                      'No such file or directory',
                      'gpgpu-manage key create host h1'):
            self.assertIn(words, said)
        said = self.refused(signature.read_masters)
        self.assertIn('gpgpu-manage key init', said)

    def test_key_that_others_may_read_is_refused(self):
        self.write()
        path = self.folder / 'host.key'
        for mode in (0o640, 0o604, 0o620, 0o602):
            os.chmod(path, mode)
            said = self.refused(signature.read_caller_key, Kind.HOST)
            self.assertIn(f'mode {mode:04o}', said)
            self.assertIn(f'chmod 600 {path}', said)

    def test_file_and_folder_of_strangers_are_refused(self):
        self.write()
        user = os.geteuid() + 1
        strangers, stat = set(), os.stat

        def owned(path, *args, **kwargs):
            found = list(stat(path, *args, **kwargs))
            found[4] = user + 1 if path in strangers else user
            return os.stat_result(found)

        self.useFixture(fixtures.MonkeyPatch('os.geteuid', lambda: user))
        self.useFixture(fixtures.MonkeyPatch('os.stat', owned))
        self.useFixture(fixtures.MonkeyPatch('os.fstat', lambda number: owned(
            pathlib.Path(os.readlink(f'/proc/self/fd/{number}')))))
        signature.read_caller_key(self.conf, Kind.HOST)
        for path in (self.folder / 'host.key', self.folder):
            strangers = {path}
            self.assertIn(f'{path}: its owner is user {user + 1}',
                          self.refused(signature.read_caller_key, Kind.HOST))

    def test_folder_in_which_others_can_replace_keys_is_refused(self):
        self.write()
        for mode in (0o775, 0o757):
            self.folder.chmod(mode)
            self.assertIn(f'chmod go-w {self.folder}',
                          self.refused(signature.read_caller_key, Kind.HOST))
        self.folder.chmod(0o1777)
        signature.read_caller_key(self.conf, Kind.HOST)

    def test_key_of_another_caller_is_refused(self):
        self.write()
        said = self.refused(signature.read_caller_key, Kind.HOST, 'h2')
        self.assertIn('host h1, not that of host h2', said)
        os.rename(self.folder / 'host.key', self.folder / 'operator.key')
        said = self.refused(signature.read_caller_key, Kind.OPERATOR)
        self.assertIn('host h1, not that of operator', said)

    def test_file_without_a_key_is_refused(self):
        for kind, text in ((Kind.HOST, 'x'), (Kind.SCHEDULER, '')):
            signature.write_key(
                signature.caller_path(self.conf, kind), text.strip)
            self.refused(signature.read_caller_key, kind)
        path = signature.master_path(self.conf)
        for text in (b'', b'\n', b'gpgpu-master-1:AA==', b'\xff'):
            path.write_bytes(text)
            path.chmod(0o600)
            self.refused(signature.read_masters)

    def test_file_may_have_several_master_keys(self):
        other = signature.new_master()
        signature.write_key(signature.master_path(self.conf),
                            lambda: f'{self.master.to_text()}\n\n'
                                f'{other.to_text()}')
        self.assertEqual((self.master, other),
                         signature.read_masters(self.conf))
