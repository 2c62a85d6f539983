#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""One storm on one database server."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import heapq
import itertools
import pathlib
import random
import time
import uuid
from collections.abc import Callable

import sqlalchemy as sa
from oslo_config import cfg

from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.objects import admin
from tests.fixtures import database
from tests.fixtures import patience
from tests.fixtures import proxy
from tests.fixtures import services
from tests.storm import host as host_mod
from tests.storm import processes
from tests.storm import truth
from tests.storm import verdict

CONDUCTORS = 3
HOSTS = 4
GPUS = 8

_SETTLE = 120
"""Seconds in which all must be settled; on a quiet machine it takes five."""

_CONF = """
[DEFAULT]
transport_url = {transport}
[gpgpu]
topic_prefix = {topic_prefix}
claim_lease = {lease}
digest_interval = 10
[database]
connection = {connection}
[oslo_messaging_rabbit]
kombu_reconnect_delay = 0.1
"""

_CONNECTIONS = {
    'postgresql': (
        'SELECT pid FROM pg_stat_activity WHERE datname = :name ORDER BY 1',
        'SELECT pg_terminate_backend({})'),
    'mysql': (
        'SELECT id FROM information_schema.processlist WHERE db = :name '
        'ORDER BY 1', 'KILL CONNECTION {}')}


class Wrong(Exception):
    """A claim of the plugin is false."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One storm.

    :ivar server: URL of the database server
    :ivar seconds: how long it lasts
    """

    server: str
    seed: str
    seconds: float


class Storm:
    """A cloud in a storm, as a context.

    :ivar counts: what happened, by name
    """

    def __init__(self, setting: Setting, folder: pathlib.Path) -> None:
        self._setting = setting
        self._folder = folder
        self._rng = random.Random(setting.seed)
        self.counts: collections.Counter[str] = collections.Counter()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._stack = contextlib.ExitStack()

    # -- the cloud ----------------------------------------------------------

    def __enter__(self) -> Storm:
        try:
            self._set_up()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _set_up(self) -> None:
        prefix = f'storm-{uuid.uuid4().hex[:8]}'
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        api.register_opts(conf)
        conf([], project='gpgpu', default_config_files=[])
        made = self._stack.enter_context(
            database.ServerDatabase(conf, self._setting.server))
        self.db = made.db
        variant_admin.create(self.db, admin.VariantInfo(
            name=host_mod.VARIANT, vendor='10de', device='2330'))
        self._admin = sa.create_engine(
            self._setting.server, isolation_level='AUTOCOMMIT')
        self._stack.callback(self._admin.dispose)
        rabbit = sa.make_url(services.RABBITMQ)
        self._ways = [self._stack.enter_context(proxy.Proxy(
            (rabbit.host or '127.0.0.1', rabbit.port or 5672)))
            for _ in range(2)]
        transports = [
            rabbit.set(host='127.0.0.1', port=way.port).render_as_string(
                hide_password=False) for way in self._ways]
        self._start_conductors(transports[0], prefix, made.connection)
        self._start_hosts(transports[1], prefix)

    def _start_conductors(self, transport: str, prefix: str,
                          connection: str) -> None:
        path = self._folder / 'gpgpu.conf'
        path.write_text(_CONF.format(
            transport=transport, topic_prefix=prefix, lease=host_mod.LEASE,
            connection=connection.replace('%', '%%')))
        self.conductors = [processes.Conductor(number, path)
                           for number in range(CONDUCTORS)]
        for conductor in self.conductors:
            self._stack.callback(conductor.kill)
            conductor.start()
        for conductor in self.conductors:
            conductor.wait_until_it_serves()

    def _start_hosts(self, transport: str, prefix: str) -> None:
        self.hosts = []
        for number in range(HOSTS):
            name = f'h{number}'
            folder = self._folder / name
            folder.mkdir()
            setting = host_mod.Setting(
                name=name, folder=folder, transport=transport,
                topic_prefix=prefix, seed=f'{self._setting.seed}/{name}')
            host_mod.machine(setting)
            self.hosts.append(processes.Host(setting))
        for host in self.hosts:
            self._stack.callback(host.kill)
            host.start()
        self._settle('the hosts report', lambda: (
            verdict.states(self.db).total() == HOSTS * GPUS))

    @property
    def _settings(self) -> list[host_mod.Setting]:
        return [host.setting for host in self.hosts]

    def _check(self) -> None:
        """Raise if a GPU was used twice, or a process ended by itself."""
        for host in self.hosts:
            host.check()
        for conductor in self.conductors:
            conductor.check()

    def _settle(self, what: str, condition: Callable[[], object]) -> None:
        def settled() -> object:
            self._check()
            return condition()
        if not patience.wait_until(settled, _SETTLE):
            raise Wrong(f'not within {_SETTLE} s: {what}')

    # -- the storm ----------------------------------------------------------

    def blow(self) -> None:
        """Break something all the time."""
        end = time.monotonic() + self._setting.seconds
        deck: list[Callable[[], None]] = []
        while time.monotonic() < end:
            if not deck:
                # Like cards: each one comes before one comes again.
                deck = [*[self._kill_conductor] * 3, *[self._kill_host] * 2,
                        *[self._stop_conductor] * 2,
                        *[self._cut_database] * 4, self._cut_broker]
                self._rng.shuffle(deck)
            deck.pop()()
            self._wait(self._rng.uniform(0.5, 1.5))
        self._wait(0, everything=True)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (
            time.monotonic() + seconds, next(self._numbers), action))

    def _wait(self, seconds: float, *, everything: bool = False) -> None:
        """Wait, and do what is due meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until or (everything and self._due):
            self._check()
            if self._due and (everything
                              or self._due[0][0] <= time.monotonic()):
                heapq.heappop(self._due)[2]()
            else:
                time.sleep(0.02)

    def _victim(self) -> processes.Conductor | None:
        """Return a conductor; None while one of them is down.

        Otherwise little is claimed: what waits for one that is stopped, or
        for a lock that it has, times out.
        """
        if all(conductor.is_up for conductor in self.conductors):
            return self._rng.choice(self.conductors)
        return None

    def _kill_conductor(self) -> None:
        conductor = self._victim()
        if conductor is not None:
            conductor.kill()
            self.counts['conductors killed'] += 1
            self._later(self._rng.uniform(0, 2), conductor.start)

    def _stop_conductor(self) -> None:
        conductor = self._victim()
        if conductor is not None:
            conductor.stop()
            self.counts['conductors stopped'] += 1
            self._later(host_mod.TIMEOUT + self._rng.uniform(0.5, 1.5),
                        conductor.go_on)

    def _kill_host(self) -> None:
        host = self._rng.choice(self.hosts)
        host.kill()
        self.counts['hosts killed'] += 1
        host.start()

    def _cut_database(self) -> None:
        select, kill = _CONNECTIONS[self._admin.dialect.name]
        with self._admin.connect() as connection:
            found = connection.scalars(
                sa.text(select), {'name': self.db.engine.url.database}).all()
            for number in found:
                if self._rng.random() < 0.5:
                    with contextlib.suppress(sa.exc.DBAPIError):
                        # It may have ended already.
                        connection.execute(sa.text(kill.format(number)))
                    self.counts['database connections cut'] += 1

    def _cut_broker(self) -> None:
        way = self._rng.choice(self._ways)
        way.down()
        way.up()
        self.counts['broker cut'] += 1

    # -- afterwards ---------------------------------------------------------

    def calm_down(self) -> None:
        """Let everything settle, and compare it with the truth.

        :raises Wrong: a GPU was lost, or the ledger contradicts itself
        """
        self._order('calm_down')
        self._settle_and_compare(
            'guests have the GPUs that are assigned to them')
        self._order('drain')
        self._settle_and_compare('nothing is assigned without guests')
        self._with_time('all GPUs are available', lambda: (
            verdict.states(self.db) == {'available': HOSTS * GPUS}))
        self._with_time('the books are empty', lambda: (
            not verdict.left_in_books(self._settings)))
        self._check_ledger()

    def _order(self, command: str) -> None:
        for host in self.hosts:
            host.order(command)
        for host in self.hosts:
            host.wait(command)

    def _settle_and_compare(self, what: str) -> None:
        self._with_time(what, lambda: (
            verdict.assigned(self.db) == verdict.used(self._settings)))

    def _with_time(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for a condition while modelled hours pass for the hosts."""
        def passed() -> object:
            if condition():
                return True
            self._order('pass_time')
            time.sleep(0.5)
            return False
        self._settle(what, passed)

    def _check_ledger(self) -> None:
        events = verdict.ledger(self.db)
        self.counts['events'] = sum(map(len, events.values()))
        for device, history in events.items():
            wrong = verdict.contradiction(history)
            if wrong is not None:
                raise Wrong(f'the ledger of device {device}: {wrong}: '
                            f'{history}')

    def totals(self) -> collections.Counter[str]:
        """Return what happened, on the hosts too."""
        counts = collections.Counter(self.counts)
        for setting in self._settings:
            counts.update(truth.Truth(setting.folder).counts)
        return counts

    def lost(self) -> list[str]:
        """Return the GPUs that are not available, with their ledgers."""
        events = verdict.ledger(self.db)
        return [f'{address} of {host} is {state}: {events.get(uuid)}'
                for uuid, host, address, state in verdict.unavailable(self.db)]
