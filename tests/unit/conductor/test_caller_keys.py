#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Tests of what conductors know about keys."""

import dataclasses
import time

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import caller_keys
from gpgpu_plugin.conductor import service
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import models
from gpgpu_plugin.rpc import conductor_api
from gpgpu_plugin.rpc import guard
from gpgpu_plugin.rpc import signature
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import keys
from tests.unit.conductor import base

Kind = context.CallerKind


class CallerKeysTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.now = 0.0
        self.keys = caller_keys.CallerKeys(self.db, lambda: self.now)
        self.master = signature.new_master()

    def make(self, kind=Kind.HOST, name='h1'):
        return caller_keys.make(self.db, self.master, kind, name)

    def revoke(self, kind=Kind.HOST, name='h1', number=None):
        return self.db.write(lambda session: caller_key_db.revoke(
            session, kind, name, number))

    def test_each_key_of_a_caller_has_its_number(self):
        numbers = {self.make().number for _ in range(20)}
        self.assertEqual(20, len(numbers))
        with self.db.reader() as session:
            self.assertEqual(numbers, {
                key.number for key in caller_key_db.all_keys(session)})

    def test_key_is_valid_from_when_it_is_made_until_it_is_revoked(self):
        self.assertFalse(self.keys.is_valid(Kind.HOST, 'h1', 1))
        first, second = self.make().number, self.make().number
        self.assertTrue(self.keys.is_valid(Kind.HOST, 'h1', first))
        self.assertEqual([first], self.revoke(number=first))
        self.now += caller_keys.VALID_FOR
        self.assertFalse(self.keys.is_valid(Kind.HOST, 'h1', first))
        self.assertTrue(self.keys.is_valid(Kind.HOST, 'h1', second))
        self.assertEqual([second], self.revoke())
        self.assertEqual([], self.revoke())

    def test_restored_database_gives_no_key_again(self):
        revoked = self.make()
        # As a backup from before is restored.
        self.db.write(lambda session: session.execute(
            sa.delete(models.CallerKey)))
        self.assertNotEqual(revoked, self.make())
        self.assertFalse(self.keys.is_valid(
            Kind.HOST, 'h1', revoked.number))

    def test_valid_key_costs_one_statement_in_its_time(self):
        key = Kind.HOST, 'h1', self.make().number
        with self.statements() as found:
            for _ in range(5):
                self.assertTrue(self.keys.is_valid(*key))
        self.assertEqual(['BEGIN', 'SELECT'],
                         [text.split()[0] for text in found])
        self.now += caller_keys.VALID_FOR
        with self.statements() as found:
            self.keys.is_valid(*key)
        self.assertEqual(['BEGIN', 'SELECT'],
                         [text.split()[0] for text in found])

    def test_name_that_no_file_can_have_makes_no_key(self):
        self.assertRaises(exception.Invalid, self.make, name='a:b')
        with self.db.reader() as session:
            self.assertEqual([], list(caller_key_db.all_keys(session)))

    def test_call_is_executed_once_and_forgotten_when_too_old(self):
        other = caller_keys.CallerKeys(self.db)
        self.assertTrue(self.keys.use('n1', 4e9))
        self.assertFalse(other.use('n1', 4e9))
        self.assertTrue(other.use('n2', 1.0))
        # Another conductor's clock may be behind.
        self.assertTrue(self.keys.use('n4', time.time() - 600))
        self.assertTrue(other.use('n3', 4e9))
        with self.db.reader() as session:
            self.assertEqual({'n1', 'n3', 'n4'}, set(session.scalars(
                sa.select(models.ExecutedCall.nonce))))


class SignedCallsTest(base.ConductorTestCase):
    """Calls through the in-process transport, signed."""

    def setUp(self):
        super().setUp()
        self.signing = self.useFixture(keys.Keys(self.conf, self.db))
        for kind, name in ((Kind.HOST, 'h1'), (Kind.SCHEDULER, 's1'),
                           (Kind.OPERATOR, 'root')):
            self.signing.make(kind, name)
        # The in-process transport keeps what other tests sent.
        self.conf.set_override('topic_prefix', self.id()[-60:], 'gpgpu')
        conductor = service.ConductorService(
            self.conf, rpc_transport.get_transport(self.conf), self.db)
        conductor.start()
        self.addCleanup(conductor.stop)
        self.api = conductor_api.ConductorAPI(self.conf)

    def test_each_kind_of_caller_is_served(self):
        self.assertEqual((), self.api.clean_tasks(context.admin(), 'h1'))
        self.assertTrue(self.api.changes_since(
            context.admin(), 0, (), None).packed)
        self.assertEqual(['H100'], [variant.name for variant in
                                    self.api.variant_list(context.admin())])

    def test_call_for_another_host_is_refused(self):
        exc = self.assertRaises(
            exception.CallerRefused, self.api.clean_tasks, context.admin(),
            'h2')
        self.assertIn('host h1 may call it for itself only', str(exc))

    def test_unsigned_caller_is_refused(self):
        self.conf.set_override('sign_calls', False, 'gpgpu')
        self.assertIn('not signed', str(self.assertRaises(
            exception.CallerRefused,
            conductor_api.ConductorAPI(self.conf).variant_list,
            context.admin())))

    def test_revoked_caller_is_refused(self):
        self.db.write(lambda session: caller_key_db.revoke(
            session, Kind.OPERATOR, 'root', None))
        self.assertIn('revoked', str(self.assertRaises(
            exception.CallerRefused, self.api.variant_list,
            context.admin())))

    def test_ledger_names_the_key_of_the_operator(self):
        found = []
        device = self.api.device_list(context.admin())[0]
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.conductor.cleaning.operator_release',
            lambda db, device, actor: found.append(actor) or 'h1'))
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.conductor.admin.device.show',
            lambda db, uuid: device))
        self.api.device_release(context.admin(), 'd1', actor='me@here')
        self.assertEqual(['me@here (key of operator root)'], found)

    def test_change_is_executed_by_one_of_two_conductors(self):
        key = self.signing.make(Kind.OPERATOR, 'root')
        signed = key.sign('t', 'variant_delete', {}, None)
        ctxt = {guard.SIGNATURE: dataclasses.asdict(signed)}
        conductors = [guard.Verifier([self.signing.master],
                                     caller_keys.CallerKeys(self.db))
                      for _ in range(2)]
        arguments = ctxt, Kind.OPERATOR, 't', 'variant_delete', {}
        first, second = (conductor.verify(*arguments)
                         for conductor in conductors)
        conductors[0].use(first, 'variant_delete', once=True)
        self.assertRaises(exception.CallerRefused, conductors[1].use,
                          second, 'variant_delete', once=True)
