# SPDX-License-Identifier: Apache-2.0
"""Claims that hosts deny, for each 100 boots, with up to four schedulers.

Requests come in bursts: all of a burst are scheduled before the first of them
claims. So each scheduler decides on GPUs that others are about to take. The
schedulers take turns, and a choice reaches the conductor at once, or when each
of them has decided.
Filters, weighers, conductor and its rules are the real ones, on SQLite in this
process; Placement is a sum for each host and class, exact as the real one.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import random
import tempfile
import typing
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from nova import objects
from nova.scheduler import host_manager
from nova.scheduler import weights
from nova.scheduler.weights import cpu
from nova.scheduler.weights import ram

from bench import race
from bench import report
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.db import api
from gpgpu_plugin.domain import naming
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.scheduler_filters import gpu_filter
from gpgpu_plugin.scheduler_filters import request_view
from gpgpu_plugin.scheduler_filters import scheduler_view
from gpgpu_plugin.scheduler_weights import gpu_weigher
from tests.fixtures import tenant

_HOSTS = 10
_BURST = 8
_BURSTS = 7
_ATTEMPTS = 3
_SEEDS = (1, 2, 3)
_VCPUS, _MEMORY = 128, 1 << 20
_KINDS = (('passthrough', 1, 'any'), ('passthrough', 2, 'same_numa'),
          ('passthrough', 3, 'same_numa'), ('T4-4Q', 1, 'any'),
          ('T4-1Q', 1, 'any'))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Variation:
    """Weighers that decide beside the filter.

    :ivar pending: whether schedulers subtract their own choices
    :ivar shared: whether they subtract those of other schedulers
    :ivar at_once: whether all decide at the same moment
    """

    schedulers: int
    weigher: bool
    pending: bool = True
    shared: bool = True
    at_once: bool = False


class _Scheduler:
    """Filter and weighers of one nova-scheduler."""

    def __init__(self, db: api.Database, variation: _Variation,
                 send: Callable[[Sequence[scheduling.SchedulerChoice]], None],
                 choices: scheduler_feed.RecentChoices) -> None:
        feed = scheduler_feed.SchedulerFeed(db)

        class Calls:
            """The conductor, without RPC."""

            @staticmethod
            def changes_since(_context: object, since: float,
                              known: Sequence[scheduling.HostVersion],
                              marker: int | None, _refusals: object = (),
                              _requests: object = (), _mix: object = 0,
                              period: float = 0.0) -> scheduling.Changes:
                return dataclasses.replace(
                    feed.changes_since(since, known, marker), recorded=True,
                    choices=choices.newer_than(period))

            @staticmethod
            def chosen(_context: object,
                       chosen: Sequence[scheduling.SchedulerChoice]) -> None:
                send(chosen)
        self.cache = scheduler_view.SchedulerViewCache(
            typing.cast(typing.Any, Calls), start=lambda work: work())
        self._filter = gpu_filter.GpuFilter(self.cache)
        self._weighers = [ram.RAMWeigher(), cpu.CPUWeigher()]
        if variation.weigher:
            self._weighers.append(gpu_weigher.GpuWeigher(tuple))
        self._pending = variation.pending

    def decide(self, hosts: Sequence[host_manager.HostState],
               spec: objects.RequestSpec) -> list[str]:
        """Return the names of the hosts in the order of choice."""
        passed = list(self._filter.filter_all(
            typing.cast(typing.Any, hosts), typing.cast(typing.Any, spec)))
        found = [weighed.obj for weighed
                 in weights.HostWeightHandler().get_weighed_objects(
                     self._weighers, passed, spec)]
        if found and self._pending:
            found[0].consume_from_request(spec)
        else:
            self.cache.last.pending.withdraw(spec.instance_uuid)
        return [host.host for host in found]


class _Cloud:
    """Hosts as Nova and Placement know them."""

    def __init__(self, db: api.Database, variation: _Variation) -> None:
        self._db = db
        self._variation = variation
        self._choices = scheduler_feed.RecentChoices()
        self._on_their_way: list[scheduling.SchedulerChoice] = []
        self._schedulers = [
            _Scheduler(db, variation, self._send, self._choices)
            for _ in range(variation.schedulers)]
        self._instances: collections.Counter[str] = collections.Counter()
        self._free: collections.Counter[tuple[str, str]] = (
            collections.Counter())
        self.denied = self.booted = self.failed = 0

    def _send(self, chosen: Sequence[scheduling.SchedulerChoice]) -> None:
        if self._variation.shared:
            self._on_their_way.extend(chosen)

    def _pass_on(self, number: int) -> None:
        """Let the conductor have the choices after a decision.

        :param number: of the decision
        """
        if (not self._variation.at_once
                or (number + 1) % self._variation.schedulers == 0):
            self._choices.add(self._on_their_way)
            self._on_their_way.clear()

    def _inventory(self) -> None:
        """Take what each host has, as it tells Placement after its claims."""
        self._free.clear()
        for known in self._schedulers[0].cache.refresh().hosts.values():
            for group in known.sent.groups:
                for offer in group.types:
                    self._free[known.sent.host, offer.resource_class] = (
                        sum(offer.available) or offer.free.bit_count())

    def burst(self, kinds: Sequence[tuple[str, int, str]]) -> None:
        """Schedule some requests, then have all claim."""
        self._inventory()
        decided = []
        for number, kind in enumerate(kinds):
            spec = _spec(kind)
            scheduler = self._schedulers[number % len(self._schedulers)]
            order = scheduler.decide(list(self._hosts(kind)), spec)
            self._pass_on(number)
            if order:
                self._free[order[0], _class(kind)] -= kind[1]
            decided.append((spec, kind, order))
        for spec, kind, order in decided:
            self._boot(spec, kind, order[:_ATTEMPTS])

    def _hosts(self, kind: tuple[str, int, str],
               ) -> Iterator[host_manager.HostState]:
        """Return the hosts for which Placement has a candidate."""
        for number in range(_HOSTS):
            name = f'h{number}'
            if self._free[name, _class(kind)] < kind[1]:
                continue
            host = host_manager.HostState(name, name, None)
            host.uuid = race.node_uuid(name)
            host.vcpus_total, host.total_usable_ram_mb = _VCPUS, _MEMORY
            host.vcpus_used = self._instances[name]
            host.free_ram_mb = _MEMORY - 1024 * self._instances[name]
            host.cpu_allocation_ratio = host.ram_allocation_ratio = 1.0
            host.allocation_candidates = [{
                'allocations': {host.uuid: {}, naming.provider_uuid(
                    host.uuid, race.VARIANT): {}}, 'mappings': {}}]
            yield host

    def _boot(self, spec: objects.RequestSpec, kind: tuple[str, int, str],
              order: Sequence[str]) -> None:
        for number, name in enumerate(order):
            if number and self._free[name, _class(kind)] < kind[1]:
                continue
            try:
                self._claim(spec, name)
            except exception.ClaimDenied:
                self.denied += 1
                self._free[name, _class(kind)] += 0 if number else kind[1]
            else:
                self._instances[name] += 1
                self.booted += 1
                return
        self.failed += 1

    def _claim(self, spec: objects.RequestSpec, host: str) -> None:
        asked = request_view.read_request(typing.cast(typing.Any, spec))
        claims.claim(self._db, claim_obj.ClaimRequest(
            **tenant.TENANT,
            instance_uuid=spec.instance_uuid, host=host, request=asked,
            allocated={naming.provider_uuid(
                race.node_uuid(host), race.VARIANT): {
                    demand.resource_class: demand.count
                    for demand in asked.demands}}), lease=600)


def _class(kind: tuple[str, int, str]) -> str:
    return naming.resource_class(race.VARIANT, kind[0])


def _spec(kind: tuple[str, int, str]) -> objects.RequestSpec:
    return objects.RequestSpec(
        instance_uuid=str(uuid.uuid4()), project_id='bench', image=None,
        scheduler_hints={}, numa_topology=None, pci_requests=None,
        flavor=objects.Flavor(
            vcpus=1, memory_mb=1024, root_gb=0, ephemeral_gb=0, extra_specs={
                f'resources:{_class(kind)}': str(kind[1]),
                'gpgpu:topology': kind[2]}))


def _run(variation: _Variation, seed: int) -> _Cloud:
    generator = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        db = race.set_up(race.Setting(
            database=f'sqlite:///{pathlib.Path(folder, "gpgpu.sqlite")}',
            transport='fake:/', hosts=_HOSTS, mixed=True))
        cloud = _Cloud(db, variation)
        for _ in range(_BURSTS):
            cloud.burst(generator.choices(_KINDS, k=_BURST))
        db.engine.dispose()
    return cloud


def _row(what: str, variation: _Variation) -> report.Row:
    clouds = [_run(variation, seed) for seed in _SEEDS]
    boots = sum(cloud.booted + cloud.failed for cloud in clouds)
    failed = 100 * sum(cloud.failed for cloud in clouds) / boots
    return report.Row(
        what=f'denied claims, {variation.schedulers} scheduler(s), {what}',
        unit='per 100 boots',
        ours=100 * sum(cloud.denied for cloud in clouds) / boots,
        note=f'{failed:.1f} % of the boots failed')


def run() -> report.Result:
    """Measure schedulers that see all choices, and others."""
    objects.register_all()
    rows = []
    for schedulers in (1, 2, 4):
        rows += [
            _row("Nova's weighers alone", _Variation(
                schedulers=schedulers, weigher=False)),
            _row('GpuWeigher that sees no choices', _Variation(
                schedulers=schedulers, weigher=True, pending=False,
                shared=False))]
        if schedulers > 1:
            rows.append(_row('GpuWeigher that sees its own choices',
                             _Variation(schedulers=schedulers, weigher=True,
                                        shared=False)))
        rows.append(_row('GpuWeigher', _Variation(
            schedulers=schedulers, weigher=True)))
        if schedulers > 1:
            rows.append(_row('GpuWeigher, all decide at once', _Variation(
                schedulers=schedulers, weigher=True, at_once=True)))
    return report.Result(name='denials', rows=tuple(rows), wrong=())
