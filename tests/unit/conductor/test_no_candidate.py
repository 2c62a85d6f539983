# SPDX-License-Identifier: Apache-2.0
"""Tests of the listener for Nova's notifications, on a real transport."""

import uuid

import fixtures
import oslo_messaging
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import refusals
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor import service
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import request_kind
from gpgpu_plugin.db import transaction
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import patience
from tests.unit.conductor import base

TOPIC = 'gpgpu_notifications'
BUILD = 'compute_task.build_instances.error'
INSTANCE = str(uuid.uuid5(uuid.NAMESPACE_DNS, 'i1'))
REQUEST = f'req-{uuid.uuid5(uuid.NAMESPACE_DNS, "r1")}'


def versioned(**data):
    return {'nova_object.name': 'X', 'nova_object.data': data}


def payload(message='No valid host was found. ', error='NoValidHost',
            **extra_specs):
    return versioned(
        instance_uuid=INSTANCE,
        reason=versioned(exception=error, exception_message=message),
        request_spec=versioned(
            project_id='p1', flavor=versioned(
                name='gpu.2', vcpus=8, memory_mb=1024,
                extra_specs=extra_specs or {
                    'resources:CUSTOM_GPU_H100': '2'})))


class EndpointTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.refused = refusals.RefusalRecorder(self.db)
        self.requests = scheduler_feed.CountedMix(self.db)
        self.waited = []
        self.endpoint = refusals.NoCandidateEndpoint(
            self.db, self.refused, self.requests, self.waited.append)

    def notify(self, content, request_id=REQUEST, event_type=BUILD):
        answer = self.endpoint.error(
            {'request_id': request_id}, 'nova-conductor:c1', event_type,
            content, {})
        self.refused.run_once()
        return answer

    def events(self):
        with self.db.reader() as session:
            return list(session.execute(sa.select(event_db.TABLE).where(
                event_db.TABLE.c.kind == 'no_candidate')))

    def test_request_without_candidate_is_an_event(self):
        self.notify(payload())
        [event] = self.events()
        self.assertEqual(
            (INSTANCE, 'p1', REQUEST, 'no_candidate', 1,
             'Nova (nova-conductor:c1)'),
            (event.instance_uuid, event.project_id, event.request_id,
             event.reason, event.count, event.actor))
        self.assertIn('flavor gpu.2 requests 2 of CUSTOM_GPU_H100',
                      event.detail)

    def kinds(self):
        self.requests.run_once()
        with self.db.reader() as session:
            return {(row.vcpus, row.memory_mib, row.resource_class, row.units):
                    row.arrivals for row in session.execute(
                        sa.select(request_kind.TABLE))}

    def test_builds_with_gpus_count_once_in_the_mix(self):
        for _ in range(2):
            self.notify(payload())
        self.assertEqual({(8, 1024, 'CUSTOM_GPU_H100', 2): 1}, self.kinds())
        # A scheduler's filter saw it, too, before Nova tried again.
        self.requests.add([scheduling.ArrivedRequests(
            scheduling.RequestKind(8, 1024), (INSTANCE,))])
        self.assertEqual({(8, 1024, 'CUSTOM_GPU_H100', 2): 1}, self.kinds())
        plain = payload(**{'resources:VCPU': '8'})
        plain['nova_object.data']['instance_uuid'] = str(uuid.uuid4())
        self.notify(plain)
        self.assertEqual({(8, 1024, 'CUSTOM_GPU_H100', 2): 1}, self.kinds())

    def test_project_counts_as_often_as_it_has_events(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.domain.event.QUOTA_LIMIT', 2))
        for number in range(5):
            refused = payload()
            refused['nova_object.data']['instance_uuid'] = str(
                uuid.uuid5(uuid.NAMESPACE_DNS, str(number)))
            self.notify(refused)
        self.assertEqual({(8, 1024, 'CUSTOM_GPU_H100', 2): 2}, self.kinds())
        self.assertEqual([1, 4], [event.count for event in self.events()])

    def test_malformed_instance_does_not_count_and_delays_no_others(self):
        self.notify(payload())
        malformed = payload()
        malformed['nova_object.data']['instance_uuid'] = '\ud800'
        self.notify(malformed)
        self.assertEqual({(8, 1024, 'CUSTOM_GPU_H100', 2): 1}, self.kinds())
        self.assertEqual({INSTANCE, '\\ud800'}, {
            event.instance_uuid for event in self.events()})

    def test_moves_and_other_errors_do_not_count(self):
        self.notify(payload(), event_type='compute_task.migrate_server.error')
        self.notify(payload('No valid host was found. There are not enough '
                            'hosts available.'))
        self.assertEqual({}, self.kinds())

    def test_error_that_came_by_rpc_is_recognised(self):
        self.notify(payload(
            'No valid host was found. \nTraceback (most recent call last):',
            'NoValidHost_Remote'))
        self.assertEqual(1, len(self.events()))

    def test_equal_requests_within_a_minute_are_counted(self):
        for _ in range(3):
            self.notify(payload())
        self.assertEqual([3], [event.count for event in self.events()])

    def test_vgpus_and_classes_of_variants_are_requests_for_gpus(self):
        self.notify(payload(**{'resources:CUSTOM_VGPU_T4_T4_4Q': '1'}))
        self.assertEqual(1, len(self.events()))

    def test_other_notifications_are_no_event(self):
        for content in (
                payload(**{'resources:VCPU': '2'}),
                payload('No valid host was found. There are not enough hosts '
                        'available.'),
                payload(error='MaxRetriesExceeded'),
                payload(**{'gpgpu:topology': 'wrong'}),
                versioned(instance_uuid=INSTANCE), versioned(), {}, [], None,
                'text', {'nova_object.data': 3}):
            self.notify(content)
        self.assertEqual([], self.events())

    def test_request_that_was_refused_already_is_no_event(self):
        self.refused.denied(
            transaction.Author(actor='host h1', request_id=REQUEST),
            self.request(1, INSTANCE), refusals.exception.ClaimDenied(
                instance=INSTANCE, host='h1', reason='not_enough_available',
                detail=''))
        self.refused.run_once()
        self.notify(payload())
        self.assertEqual([], self.events())
        self.notify(payload(), f'req-{uuid.uuid4()}')
        self.assertEqual(1, len(self.events()))

    def test_text_that_controls_a_terminal_is_escaped(self):
        content = payload()
        content['nova_object.data']['request_spec']['nova_object.data'][
            'flavor']['nova_object.data']['name'] = 'a\x1b[2J'
        self.notify(content)
        self.assertIn('flavor a\\x1b[2J', self.events()[0].detail)

    def test_strange_request_id_is_left_out(self):
        self.notify(payload(), 'x' * 300)
        self.assertIsNone(self.events()[0].request_id)

    def test_notification_comes_again_while_the_database_is_away(self):
        def reader(db):
            raise exception.DatabaseUnavailable(reason='it is away')
        with fixtures.MonkeyPatch('gpgpu_plugin.db.api.Database.reader',
                                  reader):
            self.assertEqual(oslo_messaging.NotificationResult.REQUEUE,
                             self.notify(payload()))
        self.assertEqual([refusals.LISTENER_PAUSE], self.waited)
        self.assertEqual([], self.events())
        self.assertIsNone(self.notify(payload()))
        self.assertEqual(1, len(self.events()))

    def test_database_that_fails_stops_nothing(self):
        self.db.engine.dispose()
        with self.db.engine.begin() as connection:
            connection.execute(sa.text('ALTER TABLE variants RENAME TO v'))
        self.notify(payload(**{'resources:CUSTOM_X': '1'}))
        self.assertEqual([], self.events())


class ListenerTest(base.ConductorTestCase):

    def serve(self):
        conductor = service.ConductorService(
            self.conf, rpc_transport.get_transport(self.conf), self.db)
        conductor.start()
        self.addCleanup(conductor.stop)
        return conductor

    def test_conductor_reads_what_nova_sends_to_the_topic(self):
        self.conf.set_override(
            'nova_notifications_topic', TOPIC, 'gpgpu_conductor')
        conductor = self.serve()
        self.assertTrue(
            conductor._no_candidate._started.wait(patience.LONG))
        self.conf.set_override('control_exchange', 'nova')
        transport = oslo_messaging.get_notification_transport(
            self.conf, url='fake:/')
        notifier = oslo_messaging.Notifier(
            transport, publisher_id='nova-conductor:c1',
            driver='messagingv2', topics=[TOPIC])
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.refusals.LISTENER_PAUSE', 0.01))
        self.away = 2
        is_known = refusals.NoCandidateEndpoint._is_known

        def away(*args):
            self.away -= 1
            if self.away >= 0:
                raise exception.DatabaseUnavailable(reason='it is away')
            return is_known(*args)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.refusals.NoCandidateEndpoint._is_known',
            away))
        notifier.error({'request_id': REQUEST}, BUILD, payload())

        def found():
            with self.db.reader() as session:
                return session.scalar(
                    sa.select(event_db.TABLE.c.detail).where(
                        event_db.TABLE.c.kind == 'no_candidate'))
        self.assertIn('gpu.2', patience.wait_until(found))

    def test_without_a_topic_nothing_is_read(self):
        conductor = self.serve()
        self.assertIsNone(conductor._no_candidate._listener)
