# SPDX-License-Identifier: Apache-2.0

import types

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslotest import base

from gpgpu_plugin.virt import action_event

objects.register_all()


class DeniedTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.error = None
        self.created = []
        self.log = self.useFixture(fixtures.FakeLogger())

        def create(event, instance_uuid, request_id):
            self.created.append((event, instance_uuid, request_id))
            if self.error is not None:
                raise self.error
        self.useFixture(fixtures.MonkeyPatch(
            'nova.objects.InstanceActionEvent.create', create))

    def denied(self, reason='not_enough_available'):
        action_event.denied(
            types.SimpleNamespace(request_id='r1'), 'i1', 'h1', reason)
        return self.created[-1]

    def test_event_has_host_and_reason_in_the_user_s_action(self):
        event, *action = self.denied()
        self.assertEqual(['i1', 'r1'], action)
        self.assertEqual(
            ('gpgpu_claim', 'h1', 'Error', 'not_enough_available'),
            (event.event, event.host, event.result, event.details))
        self.assertIsNotNone(event.finish_time)

    def test_long_reason_is_cut_to_what_nova_stores(self):
        event, *_ = self.denied('x' * 300)
        self.assertEqual('x' * 255, event.details)

    def test_missing_action_is_only_logged(self):
        self.error = nova_exception.InstanceActionNotFound(
            request_id='r1', instance_uuid='i1')
        self.denied()
        self.assertIn('Cannot add event gpgpu_claim', self.log.output)
        self.assertIn('not_enough_available', self.log.output)
