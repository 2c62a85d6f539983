# SPDX-License-Identifier: Apache-2.0
"""Tests of the request context and how it crosses RPC."""

import json
import uuid

from oslo_context import context as oslo_context
from oslo_context import fixture as context_fixture
from oslotest import base

from gpgpu_plugin import context

REQUEST = f'req-{uuid.uuid4()}'


class AdminTest(base.BaseTestCase):

    def test_what_the_plugin_does_by_itself_is_an_admins(self):
        self.assertTrue(context.admin().is_admin)

    def test_request_id_is_the_given_one_or_a_new_one(self):
        self.assertEqual('req-1', context.admin('req-1').request_id)
        self.assertRegex(context.admin().request_id, '^req-')
        self.assertNotEqual(context.admin().request_id,
                            context.admin().request_id)

    def test_context_of_the_thread_stays_the_callers(self):
        callers = context.RequestContext(user_id='somebody')
        self.addCleanup(delattr, oslo_context._request_store, 'context')
        context.admin()
        self.assertIs(callers, oslo_context.get_current())


class CurrentTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(context_fixture.ClearRequestContext())

    def test_users_request_is_known_by_the_id_that_nova_gave_it(self):
        oslo_context.RequestContext(
            request_id=REQUEST, global_request_id=f'req-{uuid.uuid4()}')
        found = context.current()
        self.assertEqual(REQUEST, found.global_request_id)
        self.assertNotEqual(REQUEST, found.request_id)
        self.assertTrue(found.is_admin)

    def test_thread_without_a_request_has_none(self):
        self.assertIsNone(context.current().global_request_id)

    def test_id_that_no_service_made_is_not_passed_on(self):
        oslo_context.RequestContext(request_id='x' * 5000)
        self.assertIsNone(context.current().global_request_id)

    def test_context_of_the_thread_stays_the_users(self):
        users = oslo_context.RequestContext(request_id=REQUEST)
        context.current()
        self.assertIs(users, oslo_context.get_current())

    def test_only_what_services_make_is_a_request_id(self):
        self.assertTrue(context.is_request_id(REQUEST))
        for text in (None, 'req-1', REQUEST + '\n', REQUEST.upper(), 7):
            self.assertFalse(context.is_request_id(text), text)


class SerializerTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.serializer = context.ContextSerializer()

    def cross(self, ctxt, **more):
        """Return the context as the other end of the wire has it."""
        wire = json.dumps(self.serializer.serialize_context(ctxt) | more)
        return self.serializer.deserialize_context(json.loads(wire))

    def test_what_is_not_signed_is_neither_sent_nor_read(self):
        found = self.cross(
            context.RequestContext(
                user_id='u1', request_id=REQUEST, overwrite=False),
            user_id='u2', project_id='p1', is_admin=True)
        self.assertIsInstance(found, context.RequestContext)
        self.assertEqual(
            (None, None, REQUEST, False),
            (found.user_id, found.project_id, found.request_id,
             found.is_admin))

    def test_users_request_and_actor_survive(self):
        sent = context.RequestContext(
            overwrite=False, global_request_id=REQUEST).of_actor('root@c1')
        found = self.cross(sent)
        self.assertEqual((REQUEST, 'root@c1'),
                         (found.global_request_id, found.actor))

    def test_text_that_a_log_must_not_have_is_dropped(self):
        forged = 'req-1\nERROR all is lost'
        for actor in ('root\x1b[2J', 'r' * 256, ['root']):
            found = self.cross(
                context.admin(), actor=actor, request_id=forged,
                global_request_id=forged)
            self.assertEqual(
                (None, None), (found.global_request_id, found.actor))
            self.assertTrue(context.is_request_id(found.request_id))

    def test_time_that_the_caller_waits_survives(self):
        self.assertEqual(
            3.5, self.cross(context.admin().for_call(3.5)).wanted)
        self.assertIsNone(self.cross(context.admin()).wanted)

    def test_context_of_the_caller_stays_as_it_is(self):
        callers = context.admin()
        self.assertEqual(3.5, callers.for_call(3.5).wanted)
        self.assertIsNone(callers.wanted)

    def test_field_of_a_newer_peer_is_ignored(self):
        self.assertEqual(REQUEST, self.cross(
            context.admin(REQUEST), colour='red').request_id)

    def test_arguments_stay_as_they_are(self):
        entity = {'a': (1, 2)}
        self.assertIs(entity, self.serializer.serialize_entity(
            context.admin(), entity))
        self.assertIs(entity, self.serializer.deserialize_entity(
            context.admin(), entity))
