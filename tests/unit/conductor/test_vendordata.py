# SPDX-License-Identifier: Apache-2.0

import base64
import dataclasses
import http.client
import json
import socket
import threading
import uuid

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import http_server
from gpgpu_plugin.conductor import vendordata
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.objects import claim as claim_obj
from tests.fixtures import hosts
from tests.fixtures import patience
from tests.unit.conductor import base

INSTANCE = str(uuid.uuid4())
LOCAL = http_server.Address(host='127.0.0.1', port=0)
WHOLE = {'variant': 'H100', 'vendor_id': '10de', 'device_id': '2330',
         'vgpu_type': None}


class GPUsTest(base.ConductorTestCase):

    def build(self, count, host='h1', instance=INSTANCE, **fields):
        return claims.claim(self.db, dataclasses.replace(
            self.request(count, instance, host=host), project_id='p1',
            allocated={}, **fields), 60)

    def move(self, count):
        return self.build(count, role=claim_obj.ClaimRole.DESTINATION,
                          migration_uuid='m1')

    def shown(self, project='p1'):
        return [row['count'] for row in vendordata.gpus(
            self.db, INSTANCE, project)]

    def test_gpus_are_shown_in_groups(self):
        self.build(2)
        self.build(3, instance='other')
        self.assertEqual([{**WHOLE, 'count': 2}], vendordata.gpus(
            self.db, INSTANCE, 'p1'))

    def test_another_project_is_shown_nothing(self):
        self.build(2)
        self.assertEqual([], self.shown('p2'))

    def test_instance_without_gpus_is_shown_nothing(self):
        self.assertEqual([], self.shown())

    def test_guest_of_a_resize_has_the_new_gpus_when_it_is_created(self):
        claims.activate(self.db, base.uuids(self.build(2)))
        granted = self.move(3)
        self.assertEqual([2], self.shown())
        claims.activate(self.db, base.uuids(granted))
        self.assertEqual([3], self.shown())

    def places(self):
        return [row.get('addresses') for row in vendordata.gpus(
            self.db, INSTANCE, 'p1')]

    def place(self, uuids, *addresses):
        claims.activate(self.db, uuids, None, None, dict(
            zip(uuids, addresses, strict=True)))

    def test_addresses_are_shown_once_all_are_known(self):
        uuids = base.uuids(self.build(2))
        self.assertEqual([None], self.places())
        first, second = ('0000:05:00.0', '0000:05:00.1'), ('0000:04:00.0',)
        for shown, *addresses in (
                (None, first, ()), ([[*second], [*first]], first, second),
                # A host may send anything, and tenants get it.
                (None, first, ('</script>',)),
                ([[*second], [*first]], first, second),
                (None, (), second)):
            self.place(uuids, *addresses)
            self.assertEqual([shown], self.places())
        self.place(uuids, [f'0000:04:00.{number & 7}'
                           for number in range(9999)], second)
        self.assertEqual([1, 8], [len(place) for place in self.places()[0]])

    def test_addresses_of_the_old_guest_are_not_those_of_the_new_one(self):
        old = base.uuids(self.build(1))
        self.place(old, ('0000:04:00.0',))
        new = base.uuids(self.move(1))
        self.assertEqual([[['0000:04:00.0']]], self.places())
        claims.activate(self.db, new)
        self.assertEqual([None], self.places())
        # Those of another assignment than the call is about stay.
        claims.activate(self.db, new, None, None, {
            old[0]: ('0000:05:00.0',), new[0]: ('0000:06:00.0',)})
        self.assertEqual([[['0000:06:00.0']]], self.places())
        claims.releases.release(self.db, new)
        self.assertEqual([[['0000:04:00.0']]], self.places())

    def test_guest_of_an_evacuation_has_the_new_gpus(self):
        self.report_second_host()
        hosts.begin(self.db, 'h2', base.node_uuid('h2'))
        claims.activate(self.db, base.uuids(self.build(2)))
        self.build(1, 'h2')
        self.assertEqual([1], self.shown())

    def test_claim_of_another_host_shows_nothing_while_the_guest_runs(self):
        """An evacuation failed, or the host claimed for another's instance."""
        self.report_second_host()
        hosts.begin(self.db, 'h2', base.node_uuid('h2'))
        claims.activate(self.db, base.uuids(self.build(2)))
        new = base.uuids(self.build(1, 'h2'))
        with self.db.reader() as session:
            host_id = host_db.get(session, 'h1').id
        # Until the host calls, the instance may leave it.
        self.assertEqual([1], self.shown())
        self.db.write(lambda session: session.execute(
            sa.update(tables.HOSTS).where(tables.HOSTS.c.id == host_id)
            .values(heard_at=tables.HOSTS.c.heard_at + 5)))
        self.assertEqual([2], self.shown())
        claims.activate(self.db, new)
        self.assertEqual([1], self.shown())


class EndpointTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.http_server.STOP_DELAY', 0.01))
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.http_server.parse',
            lambda value, option: LOCAL))
        for name, value in (('bind', '127.0.0.1:9465'), ('password', 's:3')):
            self.conf.set_override(
                f'vendordata_{name}', value, 'gpgpu_conductor')
        self.subject = vendordata.Vendordata(self.conf)
        self.port = self.subject.start(self.db).port
        self.addCleanup(self.subject.stop)

    def connect(self):
        connection = http.client.HTTPConnection(
            '127.0.0.1', self.port, timeout=patience.LONG)
        self.addCleanup(connection.close)
        return connection

    def send(self, connection, body=None, credentials='nova:s:3',
             scheme='Basic', method='POST'):
        text = body if isinstance(body, str) else json.dumps(body or {
            'instance-id': INSTANCE, 'project-id': 'p1'})
        connection.request(method, '/', text, headers={
            'Authorization': f'{scheme} ' + base64.b64encode(
                credentials.encode()).decode()} if credentials else {})

    def ask(self, *args, **kwargs):
        connection = self.connect()
        self.send(connection, *args, **kwargs)
        return connection.getresponse()

    def test_answer_has_the_gpus(self):
        claims.claim(self.db, dataclasses.replace(
            self.request(1, INSTANCE), project_id='p1'), 60)
        answer = self.ask({'instance-id': INSTANCE, 'project-id': 'p1',
                           'user-data': 'x' * 65536})
        self.assertEqual(200, answer.status)
        self.assertEqual({'gpus': [{**WHOLE, 'count': 1}]},
                         json.loads(answer.read()))

    def test_many_requests_at_once_are_answered(self):
        """As when many servers boot; all connect before one is answered."""
        for name in ('http_server.Handler.timeout', 'http_server.LONGEST',
                     'vendordata.PATIENCE'):
            self.useFixture(fixtures.MonkeyPatch(
                f'gpgpu_plugin.conductor.{name}', patience.LONG))
        many = [self.connect() for _ in range(200)]
        for connection in many:
            connection.connect()
        for connection in many:
            self.send(connection)
        self.assertEqual({200}, {
            connection.getresponse().status for connection in many})

    def test_strangers_get_nothing(self):
        for credentials, scheme in (
                (None, ''), ('nova:s', 'Basic'), ('nova', 'Basic'),
                ('nova:s:3', 'Bearer'), ('x:s:3', 'Basic')):
            self.assertEqual(401, self.ask(
                credentials=credentials, scheme=scheme).status)
        self.assertEqual(501, self.ask(method='GET').status)

    def test_malformed_requests_are_refused(self):
        for body in ('', '{', '[]', '{}', '7', {'instance-id': 'x',
                                                'project-id': 'p1'},
                     {'instance-id': INSTANCE}, {'project-id': 'p1'}):
            answer = self.ask(body)
            self.assertEqual(
                400, answer.status, body)

    def test_database_that_hangs_is_an_error_soon(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.vendordata.PATIENCE', 0.05))
        event = threading.Event()
        self.addCleanup(event.set)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.vendordata.gpus',
            lambda *args: event.wait(patience.LONG)))
        self.assertEqual(503, self.ask().status)
        event.set()

    def test_database_that_fails_is_an_error(self):
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.conductor.vendordata.gpus',
            side_effect=LookupError('gone')))
        self.assertEqual(503, self.ask().status)

    def test_nothing_listens_after_the_end(self):
        self.subject.stop()
        self.assertRaises(OSError, socket.create_connection,
                          ('127.0.0.1', self.port), 5)


class ConfigurationTest(base.ConductorTestCase):

    functions = ()

    def test_nothing_listens_without_an_address(self):
        subject = vendordata.Vendordata(self.conf)
        self.assertIsNone(subject.start(self.db))
        subject.stop()

    def test_password_is_required(self):
        self.conf.set_override(
            'vendordata_bind', '127.0.0.1:9465', 'gpgpu_conductor')
        exc = self.assertRaises(
            exception.ConfigInvalid, vendordata.Vendordata, self.conf)
        self.assertIn('http_basic', str(exc))
