# SPDX-License-Identifier: Apache-2.0
"""Progress of a host with the cleaning of its new devices."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstCleanings:
    """The devices that a host offers once it has cleaned them.

    :ivar devices: all of them
    :ivar cleaned: those that are clean
    :ivar waiting: new ones that its host has yet to clean
    :ivar cleaning: those of ``waiting`` that it is cleaning now
    :ivar stuck: new ones that cannot pass their cleaning policy
    """

    devices: int
    cleaned: int
    waiting: int
    cleaning: int
    stuck: int

    def text(self, seconds: Collection[float]) -> str:
        """Return the progress as one phrase.

        :param seconds: how long cleanings of such devices took
        """
        parts = [f'{self.cleaned} of {self.devices} cleaned']
        if self.stuck:
            parts.append(f'{self.stuck} need another cleaning policy')
        if self.waiting and seconds:
            rounds = math.ceil(self.waiting / max(self.cleaning, 1))
            minutes = math.ceil(rounds * statistics.median(seconds) / 60)
            parts.append(f'about {max(minutes, 1)} min')
        return ', '.join(parts)
