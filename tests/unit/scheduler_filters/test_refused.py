# SPDX-License-Identifier: Apache-2.0
"""Tests of what filters refused, until it is recorded."""

import types
import uuid

from oslo_context import context as oslo_context
from oslo_context import fixture as context_fixture
from oslotest import base

from gpgpu_plugin.scheduler_filters import conductor_messages

SPEC = types.SimpleNamespace(instance_uuid='i1', project_id='p1')


def decision(**kwargs):
    return conductor_messages.refused_decision('GpuFilter', SPEC, {'a': 1}, 0,
                                               'none', **kwargs)


class RefusedTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.subject = conductor_messages.RefusalBuffer()

    def test_decision_stays_until_it_is_recorded(self):
        first, second = decision(), decision()
        self.subject.add(first)
        sent = self.subject.oldest()
        self.assertEqual((first,), sent)
        self.subject.add(second)
        self.assertEqual((first, second), self.subject.oldest())
        self.subject.recorded(sent)
        self.assertEqual((second,), self.subject.oldest())

    def test_call_has_the_oldest_ones(self):
        for _ in range(conductor_messages.SENT_REFUSALS + 1):
            self.subject.add(decision())
        sent = self.subject.oldest()
        self.assertEqual(conductor_messages.SENT_REFUSALS, len(sent))
        self.subject.recorded(sent)
        self.assertEqual(1, len(self.subject.oldest()))

    def test_oldest_goes_when_there_are_too_many(self):
        first = decision()
        self.subject.add(first)
        sent = self.subject.oldest()
        for _ in range(conductor_messages.MAX_REFUSALS):
            self.subject.add(decision())
        self.assertIsNot(first, self.subject.oldest()[0])
        # What has gone takes no other with it.
        kept = self.subject.oldest()
        self.subject.recorded(sent)
        self.assertEqual(kept, self.subject.oldest())


class DecisionTest(base.BaseTestCase):

    def test_decision_has_the_id_of_the_users_request(self):
        self.useFixture(context_fixture.ClearRequestContext())
        self.assertIsNone(decision().request_id)
        request_id = f'req-{uuid.uuid4()}'
        oslo_context.RequestContext(request_id=request_id)
        found = decision()
        self.assertEqual((request_id, 'i1', 'p1'), (
            found.request_id, found.instance_uuid, found.project_id))
