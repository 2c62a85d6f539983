# SPDX-License-Identifier: Apache-2.0
"""Step ``canary``: marks in the memory are gone after the steps before it.

The marks are written after the guest has ended and before the first step. VFIO
itself may reset the function before that, when it is opened. A mark that is
found afterwards shows that the guest's own data may be there, too. Only
memory that the largest prefetchable BAR shows is looked at.
"""

from __future__ import annotations

import uuid

from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.host.cleaning import step


class CanaryStep(step.Step):
    """Step that looks for marks which it wrote before the others ran."""

    name = cleaning.CANARY
    limit = 130.0

    def __init__(self) -> None:
        self._seed = str(uuid.uuid4())
        self._places = self._kept = 0

    def begin(self, target: step.Target) -> None:
        self._places, self._kept = target.vfio.write_marks(
            target.address, self._seed)

    def run(self, target: step.Target) -> cleaning.StepResult:
        facts: step.Facts = {'marks': self._kept, 'places': self._places}
        if not self._places:
            return self.inapplicable(
                'the host reaches no memory of it in which a mark could be '
                'written', **facts)
        if self._kept < self._places:
            return self.inapplicable(self._forgetful(self._kept), **facts)
        found = target.vfio.find_marks(target.address, self._seed)
        facts['found'] = found
        if found:
            return self.failed(
                f'{found} of {self._kept} marks in its memory outlasted the '
                f'cleaning, so the data of its last guest may have, too; use '
                f'a cleaning policy with a step that clears the memory',
                **facts)
        # A window that shows nothing any more would have no mark either.
        _, kept = target.vfio.try_marks(target.address, str(uuid.uuid4()))
        if kept < self._places:
            return self.inapplicable(
                f'after the reset {self._forgetful(kept)}', **facts)
        return self.passed(f'none of {self._kept} marks in its memory '
                           f'outlasted the cleaning', **facts)

    def _forgetful(self, kept: int) -> str:
        return (f'only {kept} of {self._places} marks could be read back from '
                f'its memory at once, so their absence says nothing')
