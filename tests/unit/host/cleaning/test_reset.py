# SPDX-License-Identifier: Apache-2.0

import dataclasses
import errno

from gpgpu_plugin import exception
from gpgpu_plugin.host.cleaning import steps
from tests.unit.host.cleaning import card


class ResetTest(card.CardCase):

    machine = 'old-two-card'
    has_companions = True

    def setUp(self):
        super().setUp()
        self.companion = self.gpu.companions[0]

    def test_whole_card_is_reset_at_once(self):
        self.use()
        del self.host.kernel.written[:]
        verdict, results = self.clean('reset-only')
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertEqual({'method': 'card', 'functions': 2},
                         results['reset'].facts)
        self.assertEqual(f'bus/pci/devices/{self.address}/reset',
                         self.changes()[0])

    def test_card_whose_functions_have_no_reset_of_their_own_is_clean(self):
        """The kernel refuses such a reset (ENOTTY)."""
        self.use()
        for function in (self.address, self.companion):
            with open(f'{self.root}/bus/pci/devices/{function}/reset_method',
                      'w', encoding='utf-8') as file:
                file.write('')
        self.assertTrue(self.clean()[0].passed)
        self.assertIn('Inappropriate ioctl',
                      self.clean('flr+settings')[0].failure)

    def test_foreign_function_in_the_reset_is_refused(self):
        self.use()
        # The card is known to the step without its companion here.
        exc = self.assertRaises(
            exception.HostError, steps.ResetStep().run, self.target())
        self.assertIn(self.companion, str(exc))
        self.assertEqual(
            self.vfio.content(self.address)[100:106], b'TENANT')

    def test_refusal_of_the_kernel_fails(self):
        self.use()
        self.host.kernel.faults['/reset'] = errno.EIO
        verdict, results = self.clean()
        self.assertEqual(['reset'], list(results))
        self.assertIn('Input/output error', verdict.failure)


class FunctionResetTest(card.CardCase):

    def test_policy_may_name_the_reset_of_the_function(self):
        self.use()
        _, results = self.clean('flr+settings')
        self.assertEqual({'method': 'function'}, results['flr'].facts)

    def test_reset_that_is_known_to_be_broken_is_not_tried(self):
        target = dataclasses.replace(self.target(), functions=(
            dataclasses.replace(self.gpu, device='2330'),))
        del self.host.kernel.written[:]
        exc = self.assertRaises(
            exception.HostError, steps.FunctionResetStep().run, target)
        self.assertIn('was not reset: an FLR keeps state', str(exc))
        self.assertEqual([], self.host.kernel.written)


class KillingResetTest(card.CardCase):

    machine = 'amd-mi300x-8'

    def test_gpu_that_a_reset_kills_is_not_reset(self):
        self.use()
        for policy in ('default', 'flr+settings'):
            del self.host.kernel.written[:]
            verdict, _ = self.clean(policy)
            self.assertIn('does not answer after a reset until its host is '
                          'booted', verdict.failure)
            self.assertEqual([], self.changes())
        [gpu] = [function for function in self.host.scan().functions
                 if function.id == self.gpu.id]
        self.assertIsNone(gpu.fault)


class MI355XTest(KillingResetTest):

    machine = 'amd-mi355x-8'


class RTX5090Test(card.CardCase):

    machine = 'nvidia-rtx5090-2'
    has_companions = True

    def test_reset_that_can_hang_the_gpu_is_not_tried(self):
        self.use()
        del self.host.kernel.written[:]
        verdict, results = self.clean('flr+settings')
        self.assertEqual(['flr'], list(results))
        self.assertIn('an FLR can hang this GPU', verdict.failure)
        self.assertEqual([], self.changes())

    def test_card_is_reset_with_its_audio_function(self):
        self.use()
        verdict, results = self.clean()
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertEqual({'method': 'card', 'functions': 2},
                         results['reset'].facts)
