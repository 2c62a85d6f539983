# SPDX-License-Identifier: Apache-2.0
"""Step ``settings``: identity, layout and firmware are as before."""

from __future__ import annotations

from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.cleaning import step
from gpgpu_plugin.host.discovery import config_space


class SettingsStep(step.Step):
    """Step that compares all functions with their baselines.

    Its facts are what it found, so that the conductor compares it with what
    earlier cleanings found (conductor.ledger).
    """

    name = cleaning.SETTINGS

    def run(self, target: step.Target) -> cleaning.StepResult:
        functions = target.read()
        firmware = self._firmware(target, functions[0])
        shapes = {
            function.id: config_space.shape(
                target.access.binder.config(function))
            for function in functions}
        if target.device.replaces:
            for function in functions:
                target.access.baselines.renew(function.id)
        differences = [
            f'{function.address} differs from its baseline: {difference}'
            for function in functions
            for difference in target.access.baselines.differences(
                function.id,
                target.device.cleaning or target.device.assignment_uuid,
                shapes[function.id],
                firmware if function is functions[0] else None,
                had_guest=target.device.had_guest)]
        facts = cleaning.settings_facts(shapes, firmware or {})
        if differences:
            return self.failed('; '.join(differences), **facts)
        return self.passed(f'{target.address} matches its baseline', **facts)

    @staticmethod
    def _firmware(target: step.Target,
                  function: pci.PCIFunction) -> dict[str, str] | None:
        """Return the firmware of a card; None for VFs, which have none."""
        if function.pf is not None:
            return None
        return target.vfio.firmware(function.address)
