# SPDX-License-Identifier: Apache-2.0
"""Tests of the step that waits until a GPU has cleared its memory."""

import dataclasses

from gpgpu_plugin import exception
from gpgpu_plugin import nvidia
from gpgpu_plugin.host.cleaning import steps
from tests.unit.host.cleaning import card

POLICY = 'reset+memory-clear+settings'


class MemoryClearTest(card.CardCase):

    def run_step(self, **changes):
        target = self.target()
        return steps.MemoryClearStep().run(dataclasses.replace(
            target, functions=(
                dataclasses.replace(self.gpu, **changes),)))

    def test_report_of_the_gpu_passes_and_is_evidence(self):
        self.use()
        verdict, results = self.clean(POLICY)
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertEqual(
            {'architecture': 'Ada', 'register': '0x100b20',
             'before_reset': '0x1', 'after_reset': '0x0', 'value': '0x1',
             'boot_register': '0x118234', 'boot_value': '0x3ff',
             'milliseconds': 20}, results['memory-clear'].facts)
        self.assertIn('0.02 s after its reset that it has cleared',
                      results['memory-clear'].reason)

    def test_card_is_reset_as_a_whole(self):
        self.use()
        del self.host.kernel.written[:]
        self.clean(POLICY)
        self.assertEqual(
            [f'bus/pci/devices/{self.address}/reset'] * 2,
            self.changes()[:2])

    def test_gpu_that_does_not_report_it_fails(self):
        self.vfio.uncleared.add(self.address)
        self.use()
        verdict, results = self.clean(POLICY)
        self.assertFalse(verdict.passed)
        self.assertEqual('failed', results['memory-clear'].outcome)
        self.assertEqual('0x0', results['memory-clear'].facts['value'])
        self.assertIn('its register 0x100b20 is 0x0, not 0x1',
                      verdict.failure)
        # What it would find says nothing.
        self.assertNotIn('settings', results)

    def test_gpu_that_does_not_answer_fails(self):
        self.vfio.reset_and_wait = lambda *_: nvidia.ClearReading(
            before=1, first=0xffffffff, boot=0xffffffff, clear=0xffffffff,
            milliseconds=30004)
        result = self.run_step()
        self.assertEqual('failed', result.outcome)
        self.assertIn('30.004 s after', result.reason)
        self.assertIn('has not booted: its register 0x118234 is 0xffffffff, '
                      'not 0x3ff', result.reason)

    def test_gpu_with_another_identity_fails(self):
        target = self.target()
        result = steps.MemoryClearStep().run(dataclasses.replace(
            target, read=lambda: (
                dataclasses.replace(self.gpu, revision='a2'),)))
        self.assertEqual('failed', result.outcome)
        self.assertIn('revision was', result.reason)

    def test_unknown_model_is_not_touched(self):
        del self.host.kernel.written[:]
        for vendor, device in (('10de', '1db6'), ('1002', '74a1')):
            result = self.run_step(vendor=vendor, device=device)
            self.assertEqual('inapplicable', result.outcome)
            self.assertIn(f'{vendor}:{device}', result.reason)
        self.assertEqual([], self.host.kernel.written)

    def test_vf_has_no_such_register(self):
        del self.host.kernel.written[:]
        result = self.run_step(pf='/devices/pf')
        self.assertEqual('inapplicable', result.outcome)
        self.assertIn('VF', result.reason)
        self.assertEqual([], self.host.kernel.written)

    def test_refusal_of_the_kernel_fails(self):
        self.host.kernel.faults['/reset'] = 5
        self.assertRaises(exception.HostError, self.run_step)


class OtherModelTest(card.CardCase):

    machine = 'nvidia-m60-1'

    def test_policy_that_requires_it_quarantines_other_models(self):
        self.use()
        verdict, results = self.clean(POLICY)
        self.assertFalse(verdict.passed)
        self.assertIn('memory-clear inapplicable: no register of 10de:13f2',
                      verdict.failure)
        self.assertEqual('passed', results['settings'].outcome)
