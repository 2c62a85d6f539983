# SPDX-License-Identifier: Apache-2.0
"""Tests of what conductors know about keys."""

import contextlib
import dataclasses
import uuid

import fixtures
import oslo_messaging
import sqlalchemy as sa

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import callers
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import manager
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import service
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import report
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import guard
from gpgpu_plugin.rpc import signature
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import cleaned
from tests.fixtures import clocks
from tests.fixtures import hosts
from tests.fixtures import keys
from tests.unit.conductor import base
from tests.unit.conductor import test_manager

Kind = context.CallerKind
CONTRACT = conductor_contract.Conductor
METHODS = {name: method for name, method in contract.methods(CONTRACT).items()
           if Kind.HOST in guard.caller_rules(method)}


class CallerKeysTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.now = 0.0
        self.keys = callers.CallerKeys(self.db, lambda: self.now)
        self.master = signature.new_master()

    def make(self, kind=Kind.HOST, name='h1'):
        return callers.make_keys(self.db, self.master, kind, name)

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
        self.now += callers.VALID_FOR
        self.assertFalse(self.keys.is_valid(Kind.HOST, 'h1', first))
        self.assertTrue(self.keys.is_valid(Kind.HOST, 'h1', second))
        self.assertEqual([second], self.revoke())
        self.assertEqual([], self.revoke())

    def test_restored_database_gives_no_key_again(self):
        revoked = self.make()
        # As a backup from before is restored.
        self.db.write(lambda session: session.execute(
            sa.delete(caller_key_db.TABLE)))
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
        self.now += callers.VALID_FOR
        with self.statements() as found:
            self.keys.is_valid(*key)
        self.assertEqual(['BEGIN', 'SELECT'],
                         [text.split()[0] for text in found])

    def test_name_that_no_file_can_have_makes_no_key(self):
        self.assertRaises(exception.Invalid, self.make, name='a:b')
        with self.db.reader() as session:
            self.assertEqual([], list(caller_key_db.all_keys(session)))

    def serve(self, nonce, seconds, keys=None):
        """Execute a call of two transactions, each with an event."""
        (keys or self.keys).serve(
            nonce, seconds, exception.CallerRefused(
                method='change', reason='again'))
        for _ in range(2):
            self.db.write(lambda session: event_db.add(
                session, 'refusal', detail=nonce))

    def executed(self):
        with self.db.reader() as session:
            return (set(session.scalars(sa.select(
                caller_key_db.CALLS.c.nonce))), session.scalar(
                    sa.select(sa.func.count()).select_from(event_db.TABLE)
                    .where(event_db.TABLE.c.kind == 'refusal')))

    def test_call_is_executed_once_and_forgotten_when_too_old(self):
        other = callers.CallerKeys(self.db, lambda: self.now)
        self.serve('n1', 100)
        # A conductor's clock does not matter, whatever it says.
        with clocks.ConductorClock(-7200):
            self.assertRaises(exception.CallerRefused, self.serve, 'n1', 100,
                              other)
            self.serve('n2', -299)
        with clocks.ConductorClock(7200):
            self.serve('n3', -301, other)
        self.assertEqual(({'n1', 'n2', 'n3'}, 6), self.executed())
        self.now += 61
        self.serve('n4', 100)
        self.assertEqual(({'n1', 'n2', 'n4'}, 8), self.executed())

    def test_call_that_fails_may_come_again(self):
        self.keys.serve('n1', 100, exception.CallerRefused(
            method='change', reason='again'))

        def fails(session):
            raise ValueError
        self.assertRaises(ValueError, self.db.write, fails)
        self.serve('n1', 100)
        self.assertEqual(({'n1'}, 2), self.executed())

    def test_call_that_may_come_again_is_not_stored(self):
        self.keys.serve('n1', 100, exception.CallerRefused(
            method='change', reason='again'))
        self.serve(None, 100)
        self.serve(None, 100)
        self.assertEqual((set(), 4), self.executed())


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
        self.api = conductor_client.ConductorAPI(self.conf)

    def test_each_kind_of_caller_is_served(self):
        self.assertEqual((), self.api.clean_tasks(context.admin(), 'h1'))
        self.assertTrue(self.api.changes_since(
            context.admin(), 0, (), None).packed)
        self.assertEqual(['H100'], [variant.name for variant in
                                    self.api.variant_list(context.admin())])

    def test_host_is_sent_messages_with_the_key_of_its_session(self):
        path = signature.caller_path(self.conf, Kind.HOST)
        made = [self.signing.make(Kind.HOST, 'h3') for _ in range(3)]
        for number, key in enumerate(made[:2]):
            path.unlink()
            signature.write_key(path, key.to_text)
            for _ in range(2):
                self.begin(conductor_client.ConductorAPI(
                    self.conf, caller=Kind.HOST, name='h3'), number)
                self.assertEqual(key, self.of_session('h3'))
                # As if the call were repeated because its answer was not
                # signed yet.
                self.db.write(lambda session: session.execute(sa.update(
                    tables.HOSTS).values(key_number=None)))
        self.db.write(lambda session: session.execute(sa.update(
            tables.HOSTS).values(key_number=key.number)))
        self.db.write(lambda session: session.execute(
            sa.update(tables.HOSTS).where(tables.HOSTS.c.name == 'h3').values(
                deleted=tables.HOSTS.c.id)))
        # The nova-compute of a host that was deleted may run.
        self.assertEqual(key, self.of_session('h3'))
        self.db.write(lambda session: caller_key_db.revoke(
            session, Kind.HOST, 'h3', key.number))
        # h1 has not begun a session by a signed call.
        for host in ('h3', 'h1'):
            self.assertIn(f'session of host {host}', str(self.assertRaises(
                exception.NotFound, self.of_session, host)))

    def begin(self, api, number):
        api.begin_session(context.admin(), report.SessionRequest(
            host='h3', node='h3', node_uuid=str(uuid.UUID(int=3)),
            start_uuid=str(uuid.UUID(int=number + 1)), expected=number,
            identity=host_rules.MachineIdentity(machine_id='m', boot_id='b'),
            version='1'))

    def of_session(self, host):
        return callers.of_session(self.db, [self.signing.master], host)

    def test_call_for_another_host_is_refused(self):
        exc = self.assertRaises(
            exception.CallerRefused, self.api.clean_tasks, context.admin(),
            'h2')
        self.assertIn('host h1 may call it for itself only', str(exc))

    def test_unsigned_caller_is_refused(self):
        self.conf.set_override('sign_calls', False, 'gpgpu')
        self.assertIn('not signed', str(self.assertRaises(
            exception.CallerRefused,
            conductor_client.ConductorAPI(self.conf).variant_list,
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
            'gpgpu_plugin.conductor.admin.device.remove_hold',
            lambda db, device, kinds, actor: found.append(actor)))
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.conductor.admin.device.show',
            lambda db, uuid: device))
        self.api.hold_remove(
            context.admin(), 'd1', ['failed'])
        self.assertEqual(['unknown (key of operator root)'], found)

    def test_change_is_executed_by_one_of_two_conductors(self):
        key = self.signing.make(Kind.OPERATOR, 'root')
        ctxt = dict.fromkeys(context.SENT)
        signed = key.sign('t', 'variant_delete', {}, ctxt)
        ctxt[guard.SIGNATURE] = dataclasses.asdict(signed)
        conductors = [guard.Verifier([self.signing.master],
                                     callers.CallerKeys(self.db))
                      for _ in range(2)]
        arguments = ctxt, Kind.OPERATOR, 't', 'variant_delete', {}
        first, second = (conductor.verify(*arguments)[0]
                         for conductor in conductors)
        for conductor, signature_, expected in (
                (conductors[0], first, 1), (conductors[1], second, 1)):
            conductor.use(ctxt, signature_, 'variant_delete', once=True)
            with contextlib.suppress(exception.CallerRefused):
                self.db.write(lambda session: event_db.add(
                    session, 'refusal'))
            with self.db.reader() as session:
                self.assertEqual(expected, session.scalar(
                    sa.select(sa.func.count()).select_from(event_db.TABLE)
                    .where(event_db.TABLE.c.kind == 'refusal')))


CHANGES = frozenset((
    'abort', 'activate', 'begin_session', 'claim', 'clean_finished',
    'clean_postponed', 'clean_started', 'compare_allocations',
    'confirm_migration', 'release', 'report'))


class TwiceTest(base.ConductorTestCase):
    """The methods of hosts, each delivered to two conductors."""

    def setUp(self):
        super().setUp()
        master = signature.new_master()
        self.key = callers.make_keys(self.db, master, Kind.HOST, 'h1')
        self.conductors = [
            (guard.Guard([CONTRACT], Kind.HOST, 't', guard.Verifier(
                [master], callers.CallerKeys(self.db))),
             manager.ConductorManager(
                 self.conf, self.db, test_manager.FakeComputeAPI()))
            for _ in range(2)]
        self.assigned = base.uuids(self.boot(2))
        self.pending = base.uuids(self.claim(1, 'i4'))
        self.moved = base.uuids(self.claim_destination(
            1, 'm1', instance='i3', source='h3'))
        releases.release(self.db, base.uuids(self.boot(2, 'i2')))
        self.task, self.running = cleaning.tasks(self.db, 'h1')
        cleaning.started(self.db, self.running.device_uuid,
                         self.running.token, 'attempt')

    def arguments(self, method, **others):
        """Return arguments with which a method changes what it can."""
        values = {
            'origin': hosts.origin('h1', base.NODE), 'host': 'h1',
            'request': report.SessionRequest(
                host='h1', node='h1', node_uuid=base.NODE, version='1',
                start_uuid=hosts.start_uuid('h1'),
                identity=host_rules.MachineIdentity(machine_id='h1'),
                expected=9, doubted=True)
            if method == 'begin_session' else self.request(1, 'i9'),
            'report': base.scan(base.EIGHT[:7], number=9),
            'assignments': {
                'abort': self.pending, 'activate': self.pending,
                'ask': []}.get(method, self.assigned),
            'known': [], 'ages': {}, 'number': 9, 'used': [],
            'driver_capacities': None, 'touched': True, 'fault': None,
            'guest_addresses': {self.pending[0]: ('0000:66:00.0',)},
            'confirmation': claim_obj.MigrationConfirmation(
                instance_uuid='i3', migration_uuid='m1'),
            'allocations': {}, 'instance_uuid': 'i1', 'gpus': [],
            'steps': self.running.steps, 'reason': 'none',
            'results': cleaned.results(self.running.steps),
            'question': 'q1',
            'usages': [], 'drifts': [], 'limit': 10,
            'include_retired': False, 'faulty': False,
            **({'device_uuid': self.task.device_uuid,
                'token': self.task.token, 'attempt': 'a2'}
               if method == 'clean_started' else
               {'device_uuid': self.running.device_uuid,
                'token': self.running.token, 'attempt': 'attempt'}),
            **others}
        names = METHODS[method].__annotations__.keys() - {'ctxt', 'return'}
        return {name: codec.to_primitive(values.get(name))
                for name in sorted(names)}

    def sign(self, method, arguments):
        call = context.admin().for_call(60)
        call.signature = dataclasses.asdict(self.key.sign(
            't', method, arguments, call.sent()))
        return context.ContextSerializer().serialize_context(call)

    def execute(self, conductor, ctxt, method, arguments):
        """Have a conductor execute a call; return whether it did."""
        check, endpoint = self.conductors[conductor]
        try:
            check.check(ctxt, method, arguments)
            getattr(endpoint, method)(
                context.ContextSerializer().deserialize_context(ctxt),
                **arguments)
        except oslo_messaging.ExpectedException:
            return False
        return True

    def go_on(self, method):
        """Have the host do what it does next."""
        if method == 'claim':
            with self.db.reader() as session:
                claimed = [row.uuid for row, *_ in assignment_db.of_instance(
                    session, 'i9')]
            releases.release(self.db, claimed)
        elif method in ('activate', 'report', 'compare_allocations'):
            arguments = self.arguments(
                method, number=10, used=self.assigned,
                report=base.scan(base.EIGHT, number=10),
                guest_addresses={self.pending[0]: ('0000:77:00.0',)})
            self.assertTrue(self.execute(
                0, self.sign(method, arguments), method, arguments))
        elif method == 'confirm_migration':
            self.claim_destination(1, 'm2', instance='i3', source='h3')

    def rows(self):
        with self.db.reader() as session:
            return {
                table.name: [str(row) for row in session.execute(sa.select(
                    *(column for column in table.c
                      if column.name != 'heard_at')).order_by(table.c.id
                      if 'id' in table.c else sa.text('1')))]
                for table in migration.METADATA.sorted_tables
                if table.name != 'executed_calls'}

    def check(self, method):
        arguments = self.arguments(method)
        ctxt = self.sign(method, arguments)
        before = self.rows()
        self.assertTrue(self.execute(0, ctxt, method, arguments))
        # What the table says; the others change nothing, or not here.
        self.assertEqual(method in CHANGES, self.rows() != before)
        self.go_on(method)
        before = self.rows()
        self.execute(1, ctxt, method, arguments)
        self.assertEqual(before, self.rows())


def _twice(method):
    def test(self):
        self.check(method)
    return test


for _name in METHODS:
    setattr(TwiceTest, f'test_second_{_name}_changes_nothing', _twice(_name))
