# SPDX-License-Identifier: Apache-2.0
"""Everything that somebody with the broker's credentials can try.

The attacker has root on compute host h2: the broker's user, which may publish
and consume everything, the key of h2, and all UUIDs and numbers of host h1. It
tries each method of gpgpu-conductor, in each way.
"""

from __future__ import annotations

import dataclasses
import json
import queue as python_queue
import socket
import threading
import time
import uuid

import amqp
import fixtures
import sqlalchemy as sa

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.compute import service
from gpgpu_plugin.conductor import service as service_mod
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import tables
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.domain import what_if
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import forecast
from gpgpu_plugin.objects import history
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import guard
from gpgpu_plugin.rpc import signature
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import cleaned
from tests.fixtures import database
from tests.fixtures import hosts
from tests.fixtures import keys
from tests.fixtures import patience
from tests.fixtures import services
from tests.unit.conductor import base

Kind = context.CallerKind
METHODS = contract.methods(conductor_contract.Conductor)
NODE2 = str(uuid.uuid5(uuid.NAMESPACE_DNS, 'h2'))
WANTED = 60
REQUEST = 'req-12345678-1234-1234-1234-123456789abc'
REFUSED = (exception.CallerRefused, exception.NotOwner)

DEVICE_VERBS = frozenset(vars(conductor_contract.DeviceContract))
# Tables that a refused call may change.
_OWN_NOTES = ('executed_calls',)


class ForgeryTest(base.ConductorTestCase):

    def database(self):
        return database.ServerDatabase(
            self.conf, services.POSTGRESQL, content=self.content)

    def setUp(self):
        services.require(self, services.POSTGRESQL, services.RABBITMQ)
        super().setUp()
        for name, value in (
                ('transport_url', services.RABBITMQ),
                ('topic_prefix', f'test-{uuid.uuid4().hex[:8]}')):
            self.conf.set_override(name, value, 'gpgpu')
        self.signing = self.useFixture(keys.Keys(self.conf, self.db))
        self.own_key = self.signing.make(Kind.HOST, 'h2')
        self.right_keys = {
            Kind.HOST: self.signing.make(Kind.HOST, 'h1'),
            Kind.SCHEDULER: self.signing.make(Kind.SCHEDULER, 's'),
            Kind.OPERATOR: self.signing.make(Kind.OPERATOR, 'root')}
        self.set_up_hosts()
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.rpc.server'))
        # Each refused call has a line.
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.server._MINUTE', 0))
        conductor = service_mod.ConductorService(
            self.conf, self.new_transport(), self.db)
        conductor.start()
        self.addCleanup(conductor.stop)
        self.transport = self.new_transport()

    def new_transport(self):
        transport = rpc_transport.get_transport(self.conf)
        self.addCleanup(transport.cleanup)
        return transport

    def set_up_hosts(self):
        """Give h1 a guest, a claim for a move, and a GPU to clean."""
        self.report_second_host()
        self.assigned = base.uuids(self.boot(2))
        self.claimed = base.uuids(self.claim_destination(
            1, 'm1', instance='i3', source='h3'))
        freed = base.uuids(self.boot(1, 'i2'))
        base.claims.releases.release(self.db, freed)
        [self.task] = base.cleaning.tasks(self.db, 'h1')
        base.cleaning.started(
            self.db, self.task.device_uuid, self.task.token, 'attempt')

    # -- what the attacker sends --------------------------------------------

    def origin(self, host):
        return hosts.origin(host, base.NODE if host == 'h1' else NODE2)

    def arguments(self, method, host='h1'):
        """Return arguments that would do harm, as primitives."""
        values = {
            'origin': self.origin(host), 'host': host,
            'request': (
                {'host': host, 'node': host, 'node_uuid': base.NODE,
                 'start_uuid': 'mine', 'identity': {'machine_id': 'mine'},
                 'expected': 1}
                if method == 'begin_session' else
                self.request(1, 'i9', host=host)),
            'report': base.scan((), host, base.NODE, number=9),
            'assignments': self.assigned, 'known': [], 'number': 9,
            'ages': dict.fromkeys(self.assigned, 3600),
            'driver_capacities': None, 'touched': False, 'fault': None,
            'guest_addresses': {self.assigned[0]: ['0000:66:00.0']},
            'confirmation': claim_obj.MigrationConfirmation(
                instance_uuid='i1', migration_uuid='m1',
                source_assignments=tuple(self.assigned)),
            'allocations': {}, 'instance_uuid': 'i1',
            'device_uuid': self.task.device_uuid, 'token': 'attempt',
            'attempt': 'attempt', 'steps': self.task.steps,
            'results': cleaned.results(self.task.steps),
            'since': 0, 'marker': None, 'limit': 10,
            'variant': ('H100' if method != 'variant_create'
                        and method != 'variant_set' else admin.VariantInfo(
                            name='H100', vendor='10de', device='2330',
                            cleaning_policy='reset-only')),
            'before': None, 'name': 'H100', 'only_enabled': False,
            'gpus': [],
            'vgpu_type': 'passthrough', 'enabled': False, 'force': True,
            'allocation_policy': 'pack', 'instance': None,
            'guest_nodes': None, 'link_partitions': None,
            'draining': True, 'actor': 'root@control', 'reason': 'none',
            'state': None,
            'used': (), 'used_by': None, 'project': None, 'type': None,
            'health': None, 'faulty': False, 'include_retired': False,
            'device': self.task.device_uuid,
            'devices': [self.task.device_uuid],
            'kind': 'disabled',
            'kinds': ['disabled'],
            'variants': [admin.VariantInfo(
                name='L4', vendor='10de', device='27b8')], 'ping_uuid': 'p1',
            'question': 'q1',
            'query': history.UsageQuery(), 'by': ['project'],
            'usages': (self.assigned if method == 'usage_mark_exported'
                       else ()),
            'wanted': history.EventFilter(),
            'refusals': (), 'requests': (), 'mix': 0, 'period': 60.0,
            'choices': (), 'hosts': ['h1'],
            'repairs': [drift.Repair.COMPARE], 'drifts': (),
            'found': drift.of('capacity_wrong', 'h1', 'H100:passthrough')}
        if method == 'changes_since':
            values['known'] = []
        elif method == 'what_if_drain':
            values['question'] = forecast.DrainQuestion(
                hosts=('h1',), kinds=(what_if.InstanceKind(
                    request=self.request(2).request,
                    options={NODE2: ({},)}),),
                leaving={'i1': 0})
        elif method == 'why_not':
            values['request'] = self.request(1).request
        elif method == 'exact_host':
            values['request'] = scheduling_obj.ExactRequest(
                instance_uuid='i9', project_id=None,
                devices=(self.task.device_uuid,),
                request=self.request(1).request)
        names = METHODS[method].__annotations__.keys() - {'ctxt', 'return'}
        return {name: codec.to_primitive(values[name])
                for name in sorted(names)}

    def send(self, kind, method, arguments, signed=None):
        """Call a method on a topic; return the error, None if executed."""
        ctxt = self.context()
        ctxt.signature = signed and dataclasses.asdict(signed)
        client = rpc_transport.client(
            self.transport, self.topic(kind), conductor_contract.VERSION)
        try:
            answer = client.prepare(timeout=WANTED).call(
                ctxt, method, **arguments)
            name, fields = json.loads(answer['text']).get(
                'error', (None, None))
            if name is not None:
                return getattr(exception, name)(**fields)
        # Whatever the conductor answers.
        except Exception as exc:  # noqa: BLE001
            return exc
        return None

    def topic(self, kind):
        return rpc_transport.conductor_topic(self.conf, kind)

    def sign(self, key, kind, method, arguments):
        return key.sign(self.topic(kind), method, arguments,
                        self.context().sent())

    @staticmethod
    def context():
        return context.admin(REQUEST).for_call(WANTED)

    def ways(self):
        """Return the ways of an attacker without the victim's key."""
        other = signature.new_master()

        def unsigned(kind, method, arguments):
            return self.send(kind, method, arguments)

        def own_key(kind, method, arguments):
            return self.send(kind, method, arguments, self.sign(
                self.own_key, kind, method, arguments))

        def own_key_renamed(kind, method, arguments):
            signed = self.sign(self.own_key, kind, method, arguments)
            return self.send(kind, method, arguments, dataclasses.replace(
                signed, kind=str(kind), name='h1'))

        def made_up_key(kind, method, arguments):
            return self.send(kind, method, arguments, self.sign(
                other.derive(kind, 'h1', 1), kind, method, arguments))

        def key_with_the_known_masters_id(kind, method, arguments):
            key = dataclasses.replace(
                other.derive(kind, 'h1', 1),
                master_id=self.signing.master.id)
            return self.send(kind, method, arguments,
                             self.sign(key, kind, method, arguments))

        def signature_of_another_call(kind, method, arguments):
            return self.send(kind, method, arguments, self.sign(
                self.right_keys[kind], kind, 'ping', {}))
        return (unsigned, own_key, own_key_renamed, made_up_key,
                key_with_the_known_masters_id, signature_of_another_call)

    # -- what is left -------------------------------------------------------

    def rows(self):
        """Return all that the database has."""
        with self.db.engine.connect() as connection:
            return {
                table.name: sorted(map(str, connection.execute(
                    sa.select(table)).all()))
                for table in migration.METADATA.sorted_tables
                if table.name not in _OWN_NOTES}

    def refusals(self):
        return self.log.output.count('gpgpu-conductor refused')

    def rows_of_h1(self):
        with self.db.reader() as session:
            host_id = session.scalar(sa.select(tables.HOSTS.c.id).where(
                tables.HOSTS.c.name == 'h1'))
            return [str(row)
                    for table in (tables.DEVICES, tables.ASSIGNMENTS)
                    for row in session.execute(
                        sa.select(table).where(table.c.host_id == host_id)
                        .order_by(table.c.id)).all()]

    # -- the tests ----------------------------------------------------------

    def test_each_method_in_each_way_is_refused_and_logged(self):
        before = self.rows()
        tried = 0
        for way in self.ways():
            for kind in Kind:
                for method in METHODS:
                    with self.subTest(way=way.__name__, kind=kind,
                                      method=method):
                        error = way(kind, method, self.arguments(method))
                        tried += 1
                        if (way.__name__ == 'own_key' and kind is Kind.HOST
                                and method == 'instance_assignments'):
                            # Any host may read what an instance has.
                            self.assertIsNone(error)
                            tried -= 1
                            continue
                        self.assertIsInstance(
                            error, exception.CallerRefused)
        self.assertEqual(tried, self.refusals())
        self.assertEqual(before, self.rows())
        self.assertEqual(len(self.ways()) * len(Kind) * len(METHODS) - 1,
                         tried)

    def test_rows_of_another_host_are_refused_with_an_own_signature(self):
        before = self.rows_of_h1()
        refused = []
        for method, found in METHODS.items():
            if Kind.HOST not in guard.caller_rules(found):
                continue
            arguments = self.arguments(method, 'h2')
            for name, value in ((('report', base.scan(
                    (), 'h1', base.NODE, number=9)),)
                    if method == 'report' else ()):
                arguments[name] = codec.to_primitive(value)
            error = self.send(Kind.HOST, method, arguments, self.sign(
                self.own_key, Kind.HOST, method, arguments))
            if isinstance(error, REFUSED):
                refused.append(method)
        self.assertEqual(before, self.rows_of_h1())
        # The others are refused in other words, or concern h2 alone.
        self.assertEqual(
            ['report', 'activate', 'abort', 'release', 'confirm_migration',
             'clean_started', 'clean_failure', 'clean_finished',
             'clean_postponed'], refused)
        self.assertEqual(len(refused), self.refusals())

    def test_claim_for_a_migration_is_ended_by_its_source_alone(self):
        before = self.rows_of_h1()
        for method in ('abort', 'confirm_migration', 'release'):
            arguments = {
                **self.arguments(method, 'h2'),
                **({'confirmation': codec.to_primitive(
                    claim_obj.MigrationConfirmation(
                        instance_uuid='i3', migration_uuid='m1'))}
                   if method == 'confirm_migration'
                   else {'assignments': self.claimed})}
            self.assertIsInstance(
                self.send(Kind.HOST, method, arguments, self.sign(
                    self.own_key, Kind.HOST, method, arguments)),
                REFUSED, method)
        self.assertEqual(3, self.refusals())
        self.assertEqual(before, self.rows_of_h1())

    def test_messages_put_into_queues_by_name_are_refused(self):
        before = self.rows()
        channel = self.channel()
        tried = 0
        for kind in Kind:
            for queue in (self.topic(kind),
                          f'{self.topic(kind)}.{socket.gethostname()}'):
                for method in METHODS:
                    arguments = self.arguments(method)
                    for signed in (None, self.sign(
                            self.own_key, kind, method, arguments)):
                        if method == 'instance_assignments' and signed:
                            continue
                        self.publish(channel, queue, method, arguments,
                                     signed)
                        tried += 1
        self.assertTrue(patience.wait_until(
            lambda: self.refusals() >= tried))
        self.assertEqual(tried, self.refusals())
        self.assertEqual(before, self.rows())

    def test_copy_of_an_operators_call_is_executed_once(self):
        channel = self.channel()
        queue = f'attacker-{uuid.uuid4().hex[:8]}'
        channel.queue_declare(queue, auto_delete=True)
        channel.queue_bind(queue, rpc_transport.EXCHANGE,
                           self.topic(Kind.OPERATOR))
        api = conductor_client.ConductorAPI(
            self.conf, self.transport, caller=Kind.OPERATOR)
        [device, *_] = api.device_list(context.admin(), host='h2')
        api.hold_add(context.admin(), device.uuid, 'disabled')
        copies = self.consumed(channel, queue, 'hold_add')
        self.assertEqual(1, len(copies))
        api.hold_remove(context.admin(), device.uuid, ['disabled'])
        for place in (self.topic(Kind.OPERATOR), self.topic(Kind.HOST)):
            channel.basic_publish(copies[0], '', place)
        self.assertTrue(patience.wait_until(lambda: self.refusals() >= 2))
        self.assertTrue(api.device_show(
            context.admin(), device.uuid).enabled)

    def test_rightful_caller_is_refused_nothing(self):
        """Show that the calls above are such that would do harm."""
        executed = []
        # What operators do to hosts comes after what hosts do, and to the
        # device last: no host has it then.
        for method, found in sorted(METHODS.items(), key=lambda item: (
                item[0] in DEVICE_VERBS,
                Kind.HOST not in guard.caller_rules(item[1]))):
            for kind in guard.caller_rules(found):
                arguments = self.arguments(method)
                if method == 'changes_since':
                    arguments['known'] = []
                error = self.send(kind, method, arguments, self.sign(
                    self.right_keys[kind], kind, method, arguments))
                self.assertNotIsInstance(error, REFUSED)
                if error is None:
                    executed.append(method)
        for method in ('report', 'activate', 'release', 'confirm_migration',
                       'clean_finished', 'variant_set', 'vgpu_type_set',
                       'hold_add', 'host_drain', 'host_takeover'):
            self.assertIn(method, executed)

    def test_answer_that_an_attacker_gives_counts_as_none(self):
        # No conductor serves this topic, so that the attacker is the first,
        # who has any key but that of the caller, h2 this time.
        self.conf.set_override(
            'topic_prefix', f'test-{uuid.uuid4().hex[:8]}', 'gpgpu')
        channel, answered = self.channel(), []
        queue = self.topic(Kind.HOST)
        channel.exchange_declare(
            rpc_transport.EXCHANGE, 'topic', durable=False,
            auto_delete=False)
        channel.queue_declare(queue, auto_delete=False)
        channel.queue_bind(queue, rpc_transport.EXCHANGE, queue)
        self.addCleanup(channel.queue_delete, queue)
        ended = threading.Event()

        def forge():
            while not ended.wait(0.01):
                message = channel.basic_get(queue, no_ack=True)
                if message is not None:
                    answered.append(self.answer_as_attacker(
                        channel, json.loads(json.loads(
                            message.body)['oslo.message']), len(answered)))
        attacker = threading.Thread(target=forge)
        attacker.start()
        self.addCleanup(attacker.join)
        self.addCleanup(ended.set)
        api = conductor_client.ConductorAPI(
            self.conf, self.transport, timeout=30, caller=Kind.HOST,
            name='h2')
        for _ in range(2):
            self.assertRaises(
                exception.AnswerRefused, api.host_inventory,
                context.admin(), 'h2')
        self.assertEqual(['host_inventory'] * 2, answered)
        # The call that may be repeated is.
        self.assertRaises(
            exception.AnswerRefused, api.claim, context.admin(),
            self.origin('h2'), self.request(1, 'i9', host='h2'))
        self.assertEqual(['claim'] * 4, answered[2:])

    def test_message_to_a_host_is_a_conductors(self):
        """Show it with h2, whose key the attacker does not have this time."""
        done, kept = python_queue.Queue(), f'attacker-{uuid.uuid4().hex[:8]}'
        server = rpc_transport.server(
            self.transport, rpc_transport.compute_topic(self.conf), 'h2',
            [service.ComputeManager(
                lambda: done.put('refreshed'), lambda: done.put('changed'),
                done.put, done.put, done.put)],
            guard=compute_api.guard_of(self.conf, 'h2'))
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)
        channel = self.channel()
        topic = f'{rpc_transport.compute_topic(self.conf)}.h2'
        channel.queue_declare(kept, auto_delete=True)
        channel.queue_bind(kept, rpc_transport.EXCHANGE, topic)
        self.db.write(lambda session: session.execute(
            sa.update(tables.HOSTS).where(tables.HOSTS.c.name == 'h2')
            .values(key_number=self.own_key.number)))
        api = conductor_client.ConductorAPI(
            self.conf, self.transport, caller=Kind.OPERATOR)
        api.host_drain(context.admin(), 'h2', draining=True)
        self.assertEqual('refreshed', done.get(timeout=60))
        # A copy of that message, and what the attacker makes.
        refused = self.refusals_of_hosts()
        [copy] = self.consumed(channel, kept, 'refresh')
        channel.basic_publish(copy, '', topic)
        question = {'question': 'q1', 'asked_at': time.time(), 'repairs': [
            drift.Repair.COMPARE]}
        for signed in (None, self.right_keys[Kind.HOST].sign(
                rpc_transport.compute_topic(self.conf), 'examine', question,
                dict.fromkeys(context.SENT))):
            self.publish(channel, topic, 'examine', question, signed,
                         compute_api.VERSION)
        self.assertTrue(patience.wait_until(
            lambda: self.refusals_of_hosts() >= refused + 3))
        self.assertTrue(done.empty())

    def refusals_of_hosts(self):
        return self.log.output.count('nova-compute refused message')

    @staticmethod
    def answer_as_attacker(channel, call, number):
        """Answer a call, with results and with errors in turn."""
        reply = {
            'result': {'text': '{"result":null}', 'mac': '0' * 64}
            if number % 2 else None, 'ending': True,
            'failure': None if number % 2 else json.dumps({
                'class': 'ClaimDenied', 'module': exception.__name__,
                'message': 'denied', 'tb': [], 'args': [], 'kwargs': {
                    'instance': 'i9', 'host': 'h1', 'detail': '',
                    'reason': 'forged'}}),
            '_msg_id': call['_msg_id'], '_unique_id': uuid.uuid4().hex}
        channel.basic_publish(amqp.Message(
            json.dumps({'oslo.version': '2.0',
                        'oslo.message': json.dumps(reply)}),
            content_type='application/json', content_encoding='utf-8'),
            '', call['_reply_q'])
        return call['method']

    # -- the broker by hand -------------------------------------------------

    def channel(self):
        url = sa.make_url(services.RABBITMQ)
        connection = amqp.Connection(
            f'{url.host}:{url.port or 5672}', userid=url.username,
            password=url.password)
        connection.connect()
        self.addCleanup(connection.close)
        return connection.channel()

    @staticmethod
    def publish(channel, queue, method, arguments, signed,
                version=conductor_contract.VERSION):
        message = {
            'method': method, 'args': arguments,
            'version': version,
            '_unique_id': uuid.uuid4().hex, '_context_wanted': None,
            '_context_signature': signed and dataclasses.asdict(signed)}
        channel.basic_publish(amqp.Message(
            json.dumps({'oslo.version': '2.0',
                        'oslo.message': json.dumps(message)}),
            content_type='application/json', content_encoding='utf-8'),
            '', queue)

    @staticmethod
    def consumed(channel, queue, method):
        """Return the copies of the calls of a method, to be sent again."""
        found = []
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            inner = json.loads(json.loads(message.body)['oslo.message'])
            if inner['method'] == method:
                # The broker's client drops what has an id it knows.
                inner['_unique_id'] = uuid.uuid4().hex
                inner.pop('_msg_id', None)
                inner.pop('_reply_q', None)
                found.append(amqp.Message(
                    json.dumps({'oslo.version': '2.0',
                                'oslo.message': json.dumps(inner)}),
                    content_type='application/json',
                    content_encoding='utf-8'))
        return found
