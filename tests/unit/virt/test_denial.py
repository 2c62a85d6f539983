# SPDX-License-Identifier: Apache-2.0

import logging
import types

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslo_log import log as oslo_logging
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.virt import denial
from gpgpu_plugin.virt import exception as virt_exception

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

    def denied(self, detail='x'):
        denial.record(
            types.SimpleNamespace(request_id='r1'), 'i1', 'h1',
            exception.ClaimDenied(
                instance='i1', host='h1', reason='not_enough_available',
                detail=detail))
        return self.created[-1]

    def test_event_has_host_and_reason_in_the_user_s_action(self):
        event, *action = self.denied()
        self.assertEqual(['i1', 'r1'], action)
        self.assertEqual(
            ('gpgpu_claim', 'h1', 'Error',
             'Claim of i1 on h1 denied: not_enough_available (x)'),
            (event.event, event.host, event.result, event.details))
        self.assertIsNotNone(event.finish_time)

    def test_long_reason_is_cut_to_what_nova_stores(self):
        event, *_ = self.denied('x' * 300)
        self.assertEqual(255, len(event.details))

    def test_other_errors_are_no_event(self):
        denial.record(None, 'i1', 'h1', exception.HostError(
            path='/sys/x', reason='gone'))
        self.assertEqual([], self.created)

    def test_missing_action_is_only_logged(self):
        self.error = nova_exception.InstanceActionNotFound(
            request_id='r1', instance_uuid='i1')
        self.denied()
        self.assertIn('Cannot add event gpgpu_claim', self.log.output)
        self.assertIn('not_enough_available', self.log.output)


class NovaLogTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        denial.keep_out_of_nova_log()
        denial.keep_out_of_nova_log()
        self.log = self.useFixture(fixtures.FakeLogger(
            denial.NOVA_LOGGER, format='%(levelname)s %(message)s'))

    def logged(self, error):
        try:
            raise error
        except type(error):
            oslo_logging.getLogger(denial.NOVA_LOGGER).exception(
                'Failed to build and run instance', resource=None)
        return self.log.output.splitlines()

    def test_denied_claim_is_no_error_of_nova(self):
        self.assertEqual([], self.logged(virt_exception.GPUClaimDenied(
            reason='Claim of i denied: not_enough_available')))

    def test_other_errors_keep_their_traceback(self):
        lines = self.logged(virt_exception.GPUOperationFailed(
            instance='i', remedy='repeat'))
        self.assertEqual('ERROR Failed to build and run instance', lines[0])
        self.assertIn('Traceback (most recent call last):', lines)

    def test_line_without_an_error_stays(self):
        logging.getLogger(denial.NOVA_LOGGER).warning('Some %s', 'text')
        self.assertEqual('WARNING Some text\n', self.log.output)
