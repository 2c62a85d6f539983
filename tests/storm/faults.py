# SPDX-License-Identifier: Apache-2.0
"""Faults of processes and connections at random moments."""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import random
import time
from collections.abc import Callable

import sqlalchemy as sa

from tests.storm import cloud as cloud_mod
from tests.storm import host as host_mod
from tests.storm import processes

_CONNECTIONS = {
    'postgresql': (
        'SELECT pid FROM pg_stat_activity WHERE datname = :name ORDER BY 1',
        'SELECT pg_terminate_backend({})'),
    'mysql': (
        'SELECT id FROM information_schema.processlist WHERE db = :name '
        'ORDER BY 1', 'KILL CONNECTION {}')}


class FaultInjector:
    """Injects faults into a cloud, and ends them again.

    :param server: URL of the database server
    :ivar counts: numbers of faults, by name
    """

    def __init__(self, cloud: cloud_mod.Cloud, server: str,
                 rng: random.Random) -> None:
        self._cloud = cloud
        self._rng = rng
        self._admin = sa.create_engine(server, isolation_level='AUTOCOMMIT')
        self.counts: collections.Counter[str] = collections.Counter()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._second_starts: list[processes.SecondStart] = []

    def inject(self, seconds: float, is_enough: Callable[[], bool]) -> None:
        """Inject faults for some seconds, then end those that last.

        :param is_enough: whether all that is to happen has happened; a slow
            machine gets up to ten times as long for it, with pauses that grow
            as much
        :raises DoubleUse: a GPU was used twice
        :raises ProcessDied: a process ended that was not killed, or a second
            start for a host was accepted
        """
        began = time.monotonic()
        faults: list[Callable[[], None]] = []
        try:
            while (passed := time.monotonic() - began) < seconds or (
                    passed < 10 * seconds and not is_enough()):
                # All faults occur before one of them is repeated.
                faults = faults or self._shuffled()
                faults.pop()()
                # A slow machine gets further between two faults, too: else
                # a host may always be killed before its moves have ended.
                self._wait(self._rng.uniform(0.5, 1.5)
                           * max(1.0, passed / seconds))
            self._wait(0, everything=True)
            self.counts['second starts fenced'] += sum(
                second.is_fenced() for second in self._second_starts)
        finally:
            for second in self._second_starts:
                second.kill()
            self._admin.dispose()

    def _shuffled(self) -> list[Callable[[], None]]:
        faults = [
            *[self._kill_conductor] * 3, *[self._kill_host] * 2,
            *[self._stop_conductor] * 2, *[self._cut_database] * 4,
            self._cut_broker, self._start_second]
        self._rng.shuffle(faults)
        return faults

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (
            time.monotonic() + seconds, next(self._numbers), action))

    def _wait(self, seconds: float, *, everything: bool = False) -> None:
        """Wait, and run the actions that become due.

        :param everything: whether all other actions are run now, too
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until or (everything and self._due):
            self._cloud.check()
            if self._due and (everything
                              or self._due[0][0] <= time.monotonic()):
                heapq.heappop(self._due)[2]()
            else:
                time.sleep(0.02)

    def _any_conductor(self) -> processes.Conductor | None:
        """Return a random conductor; None while one of them is down.

        With two of three down little is claimed: what waits for a stopped
        conductor, or for a lock that it has, times out.
        """
        if all(conductor.is_up for conductor in self._cloud.conductors):
            return self._rng.choice(self._cloud.conductors)
        return None

    def _kill_conductor(self) -> None:
        conductor = self._any_conductor()
        if conductor is not None:
            conductor.kill()
            self.counts['conductors killed'] += 1
            self._later(self._rng.uniform(0, 2), conductor.start)

    def _stop_conductor(self) -> None:
        conductor = self._any_conductor()
        if conductor is not None:
            conductor.stop()
            self.counts['conductors stopped'] += 1
            self._later(host_mod.TIMEOUT + self._rng.uniform(0.5, 1.5),
                        conductor.resume)

    def _kill_host(self) -> None:
        host = self._rng.choice(self._cloud.hosts)
        host.kill()
        self.counts['hosts killed'] += 1
        host.start()

    def _start_second(self) -> None:
        """Start a second nova-compute for a host, on another machine.

        It must be fenced, and must not free what the host has assigned.
        """
        self._second_starts.append(processes.SecondStart(
            self._rng.choice(self._cloud.hosts).setting))

    def _cut_database(self) -> None:
        select, kill = _CONNECTIONS[self._admin.dialect.name]
        with self._admin.connect() as connection:
            found = connection.scalars(sa.text(select), {
                'name': self._cloud.db.engine.url.database}).all()
            for number in found:
                if self._rng.random() < 0.5:
                    with contextlib.suppress(sa.exc.DBAPIError):
                        # It may have ended already.
                        connection.execute(sa.text(kill.format(number)))
                    self.counts['database connections cut'] += 1

    def _cut_broker(self) -> None:
        entry = self._rng.choice(self._cloud.proxies)
        entry.down()
        entry.up()
        self.counts['broker cut'] += 1
