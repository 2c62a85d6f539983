# SPDX-License-Identifier: Apache-2.0

import types
from unittest import mock

import fixtures
from nova import exception as nova_exception
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.virt import denial
from gpgpu_plugin.virt import migration as migration_mod


class Tracker:
    """Fake of the claims for moves of Nova's resource tracker."""

    def __init__(self, calls):
        self.calls = calls

    def resize_claim(self, context, instance, flavor, nodename, migration,
                     allocations, image_meta=None, limits=None):
        self.calls.nova(context, instance, flavor, nodename, migration,
                        allocations, image_meta, limits)
        return types.SimpleNamespace(abort=self.calls.nova_abort)


class MoveClaimTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.calls = mock.Mock()
        self.tracker = Tracker(self.calls)
        self.calls.gpus.return_value = self.calls.end
        migration_mod.claim_with(self.tracker, self.calls.gpus)
        self.instance = types.SimpleNamespace(uuid='i1')
        self.migration = types.SimpleNamespace(
            uuid='m1', dest_compute='h1')
        self.record = self.useFixture(fixtures.MockPatchObject(
            denial, 'record')).mock

    def claim(self):
        return self.tracker.resize_claim(
            'context', self.instance, 'flavor', 'node', self.migration,
            'allocations', image_meta='image', limits='limits')

    def names(self):
        return [name for name, _, _ in self.calls.mock_calls]

    def test_nova_claims_first_then_gpus_are_claimed(self):
        self.claim()
        self.assertEqual([
            mock.call.nova('context', self.instance, 'flavor', 'node',
                           self.migration, 'allocations', 'image', 'limits'),
            mock.call.gpus('context', self.instance, 'flavor',
                           self.migration, 'allocations', 'image', 'node'),
        ], self.calls.mock_calls)

    def test_claim_that_nova_denies_asks_for_no_gpus(self):
        self.calls.nova.side_effect = (
            nova_exception.ComputeResourcesUnavailable(reason='memory'))
        self.assertRaises(
            nova_exception.ComputeResourcesUnavailable, self.claim)
        self.assertEqual(['nova'], self.names())

    def test_denial_aborts_nova_s_claim_and_leaves_the_server(self):
        for exc, reason in (
                (exception.ClaimDenied(
                    'message\nTraceback', instance='i1', host='h1',
                    reason='not_enough_available', detail='x'),
                 'the claim of GPUs was denied: not_enough_available'),
                (exception.ConductorUnavailable(method='claim', timeout=1),
                 'could not be made ready'),
                (OSError('disk full'), 'could not be made ready')):
            self.calls.reset_mock()
            self.calls.gpus.side_effect = exc
            raised = self.assertRaises(
                nova_exception.InstanceFaultRollback, self.claim)
            self.assertIsInstance(
                raised.inner_exception,
                nova_exception.ComputeResourcesUnavailable)
            self.assertIn(reason, str(raised.inner_exception))
            self.assertNotIn('Traceback', str(raised.inner_exception))
            self.assertEqual(['nova', 'gpus', 'nova_abort'], self.names())
            # The user finds the reason of a denial.
            self.record.assert_called_with('context', 'i1', 'h1', exc)

    def test_abort_of_nova_s_claim_ends_that_of_gpus(self):
        for fails in (False, True):
            claim = self.claim()
            self.calls.reset_mock()
            self.calls.nova_abort.side_effect = (
                RuntimeError('database') if fails else None)
            if fails:
                self.assertRaises(RuntimeError, claim.abort)
            else:
                claim.abort()
            self.assertEqual(['nova_abort', 'end'], self.names())
