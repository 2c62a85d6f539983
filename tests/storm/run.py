# SPDX-License-Identifier: Apache-2.0
"""One run on one database server: faults, then the checks of the outcome."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import random
import time
from collections.abc import Callable

from tests.fixtures import patience
from tests.storm import cloud as cloud_mod
from tests.storm import event_history
from tests.storm import faults
from tests.storm import ground_truth
from tests.storm import results

_SETTLE = 120
"""Seconds in which each check must pass; on an idle machine five suffice."""


class CheckFailed(Exception):
    """A check of the outcome failed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Parameters of one run.

    :ivar server: URL of the database server
    :ivar seed: seed of all random choices
    :ivar seconds: duration of the faults, at least
    """

    server: str
    seed: str
    seconds: float


class Run:
    """One run, as a context.

    :param folder: folder for the files of the processes
    """

    def __init__(self, setting: Setting, folder: pathlib.Path) -> None:
        self._setting = setting
        self._cloud = cloud_mod.Cloud(setting.server, setting.seed, folder)
        self._faults = faults.FaultInjector(
            self._cloud, setting.server, random.Random(setting.seed))
        self._events = 0

    def __enter__(self) -> Run:
        self._cloud.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._cloud.__exit__(*exc_info)

    def inject_faults(self, is_enough: Callable[
            [collections.Counter[str]], bool]) -> None:
        """Inject faults while the hosts claim, use and release GPUs.

        :param is_enough: as for FaultInjector, by the counts so far
        :raises DoubleUse: a GPU was used twice
        :raises ProcessDied: a process ended that was not killed
        """
        self._faults.inject(
            self._setting.seconds, lambda: is_enough(self.counts()))

    def check(self) -> None:
        """End the workload, and check the outcome.

        :raises CheckFailed: a GPU was lost, or the events of a device
            contradict its states
        """
        self._cloud.command('stop_workload')
        self._wait_until_equal(
            'guests have the GPUs that are assigned to them')
        self._wait_until('all moves are confirmed or reverted', lambda: (
            not results.destinations(self._cloud.db)))
        self._cloud.command('delete_instances')
        self._wait_until_equal('nothing is assigned without guests')
        self._wait_until('all GPUs are available', lambda: (
            results.states(self._cloud.db) == {
                'available': cloud_mod.HOSTS * cloud_mod.GPUS}))
        self._wait_until('the books are empty', lambda: (
            not results.book_entries(self._cloud.settings)))
        self._check_events()

    def _wait_until_equal(self, what: str) -> None:
        self._wait_until(what, lambda: (
            results.assigned(self._cloud.db)
            == results.used(self._cloud.settings)))

    def _wait_until(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for a condition while the clocks of the hosts are advanced.

        :raises CheckFailed: it does not become true
        """
        def passed() -> object:
            self._cloud.check()
            if condition():
                return True
            self._cloud.command('advance_clock')
            time.sleep(0.5)
            return False
        if not patience.wait_until(passed, _SETTLE):
            raise CheckFailed(f'not within {_SETTLE} s: {what}')

    def _check_events(self) -> None:
        events = event_history.read(self._cloud.db)
        self._events = sum(map(len, events.values()))
        for device, history in events.items():
            found = event_history.contradiction(history)
            if found is not None:
                raise CheckFailed(
                    f'events of device {device}: {found}: {history}')

    def counts(self) -> collections.Counter[str]:
        """Return the numbers of faults, messages, claims and builds."""
        counts = collections.Counter(self._faults.counts, events=self._events)
        for setting in self._cloud.settings:
            counts.update(ground_truth.GroundTruth(setting.folder).counts)
        return counts

    def lost(self) -> list[str]:
        """Return the GPUs that are not available, with their events."""
        events = event_history.read(self._cloud.db)
        return [f'{address} of {host} is {state}: {events.get(uuid)}'
                for uuid, host, address, state
                in results.unavailable(self._cloud.db)]
