# SPDX-License-Identifier: Apache-2.0

from gpgpu_plugin import exception
from gpgpu_plugin import extensions
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.host.cleaning import ladder
from gpgpu_plugin.host.cleaning import steps
from tests.unit.host.cleaning import card


class _Step(steps.CleaningStep):

    name = 'test'

    def run(self, card):
        raise NotImplementedError


class StepTest(card.CardCase):

    def test_results_have_the_name_of_the_step(self):
        for method, outcome in ((_Step().passed, 'passed'),
                                (_Step().failed, 'failed'),
                                (_Step().inapplicable, 'inapplicable')):
            self.assertEqual(
                cleaning.StepResult(
                    step='test', outcome=cleaning.StepOutcome(outcome),
                    reason='why', facts={'bytes': 1}),
                method('why', bytes=1))

    def test_step_need_not_begin(self):
        self.assertIsNone(_Step().begin(self.target()))

    def test_target_has_the_address_of_the_device(self):
        self.assertEqual(self.address, self.target().address)

    def test_nothing_touches_the_device_after_the_end(self):
        target = self.target()
        target.check()
        self.assertIs(self.vfio, target.vfio)
        target.ended.set()
        self.assertRaises(exception.HostError, target.check)
        self.assertRaises(exception.HostError, getattr, target, 'vfio')

    def test_names_are_those_of_the_entry_points(self):
        installed = extensions.load_all(ladder.STEPS)
        self.assertEqual(
            {name: name for name in installed},
            {name: kind.name for name, kind in installed.items()})
        self.assertEqual(cleaning.SHIPPED, set(installed))
