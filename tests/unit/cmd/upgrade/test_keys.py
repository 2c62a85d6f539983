# SPDX-License-Identifier: Apache-2.0
"""Tests of the checks of keys."""

from gpgpu_plugin import context
from gpgpu_plugin.cmd import upgrade_database
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.rpc import signature
from tests.fixtures import keys as keys_fixture
from tests.unit.cmd.upgrade import base
from tests.unit.conductor import base as conductor_base

_HOST = context.CallerKind.HOST
_OPERATOR = context.CallerKind.OPERATOR
_SCHEDULER = context.CallerKind.SCHEDULER


class KeyTestCase(base.ResultMixin, conductor_base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.keys = self.useFixture(keys_fixture.Keys(self.conf, self.db))

    def check(self, check):
        with self.db.reader() as session:
            return check(self.conf, session)

    def revoke(self, key):
        self.db.write(lambda session: caller_key_db.revoke(
            session, key.kind, key.name, key.number))


class HereTest(KeyTestCase):

    def setUp(self):
        super().setUp()
        self.operator = self.keys.make(_OPERATOR, 'root')
        self.path = signature.caller_path(self.conf, _OPERATOR)
        self.master_path = signature.master_path(self.conf)

    def failure_here(self):
        return self.failure(self.check(upgrade_database.keys_here))

    def test_usable_keys_pass(self):
        self.assertIn('are usable',
                      self.success(self.check(upgrade_database.keys_here)))

    def test_unsigned_calls_are_a_warning(self):
        self.conf.set_override('sign_calls', False, 'gpgpu')
        self.assertIn('Remove [gpgpu] sign_calls = false',
                      self.warning(self.check(upgrade_database.keys_here)))

    def test_missing_files_fail(self):
        self.path.unlink()
        self.assertIn('gpgpu-manage key create operator',
                      self.failure_here())
        self.master_path.unlink()
        self.assertIn('gpgpu-manage key init', self.failure_here())

    def test_files_that_others_can_read_fail(self):
        for path in (self.path, self.master_path):
            path.chmod(0o640)
            self.assertIn(f'chmod 600 {path}', self.failure_here())

    def test_key_of_another_master_key_fails(self):
        self.path.write_text(signature.new_master().derive(
            _OPERATOR, 'root', self.operator.number).to_text())
        self.assertIn('was not made with a key in', self.failure_here())

    def test_revoked_key_fails_and_shows_how_to_make_another(self):
        self.revoke(self.operator)
        text = self.failure_here()
        self.assertIn('or it was revoked', text)
        self.assertIn('"gpgpu-manage key create operator root"', text)


class OfCallersTest(KeyTestCase):

    def test_host_and_scheduler_without_a_key_fail(self):
        text = self.failure(self.check(upgrade_database.caller_keys))
        self.assertIn('no valid key was made for h1, so', text)
        self.assertIn('no valid key was made for nova-scheduler', text)

    def test_hosts_and_a_scheduler_with_keys_pass(self):
        self.keys.make(_HOST, 'h1')
        self.keys.make(_SCHEDULER, 'control1')
        self.success(self.check(upgrade_database.caller_keys))

    def test_key_of_another_kind_or_host_does_not_count(self):
        self.keys.make(_SCHEDULER, 'h1')
        self.keys.make(_HOST, 'h2')
        self.assertIn('for h1, so', self.failure(
            self.check(upgrade_database.caller_keys)))

    def test_revoked_key_does_not_count_unless_there_is_another(self):
        self.keys.make(_SCHEDULER, 'control1')
        self.revoke(self.keys.make(_HOST, 'h1'))
        self.assertIn('for h1, so', self.failure(
            self.check(upgrade_database.caller_keys)))
        self.keys.make(_HOST, 'h1')
        self.success(self.check(upgrade_database.caller_keys))

    def test_unsigned_calls_need_no_keys(self):
        self.conf.set_override('sign_calls', False, 'gpgpu')
        self.success(self.check(upgrade_database.caller_keys))
