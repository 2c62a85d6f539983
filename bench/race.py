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
"""Many claimers at once, through the whole path of a claim.

Conductors and claimers are processes of their own and talk over RabbitMQ;
the test of exactness and the benchmark run the same race. Each claimer takes
devices until a few refusals in a row tell it that nothing is left.
"""

from __future__ import annotations

import collections
import dataclasses
import multiprocessing
import queue
import random
import threading
import time
import typing
import uuid
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from bench import crowd
from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import service
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.conductor.admin import vgpu_type as vgpu_type_admin
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.domain.vgpu import capacity
from gpgpu_plugin.domain.vgpu import vgpu_type
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.rpc import conductor_api
from gpgpu_plugin.rpc import transport as rpc_transport

VARIANT = 'BENCH'
TYPES = {'T4-1Q': 16, 'T4-4Q': 4, 'T4-16Q': 1}
"""How many of each fit on a card."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One race.

    :ivar transport: URL; ``fake:/`` keeps everything in this process
    :ivar topic_prefix: keeps the race apart from others on the same broker
    :ivar mixed: claimers ask for whole cards and vGPUs of three types, now
        and then for two of these at once
    :ivar sharing: which vGPUs may be on one card,
        domain.mix_policy.VGPUMixPolicy
    :ivar unsafe: without the host's lock and the unique key, to show that
        the race would find what they prevent
    """

    database: str
    transport: str
    hosts: int = 25
    devices: int = 8
    conductors: int = 2
    processes: int = 8
    threads: int = 8
    mixed: bool = False
    mix_policy: str = capacity.VGPUMixPolicy.SAME_TYPE.value
    unsafe: bool = False

    @property
    def classes(self) -> tuple[str, ...]:
        """Resource classes that claimers ask for."""
        return tuple(naming.resource_class(VARIANT, name) for name in (
            naming.PASSTHROUGH, *(TYPES if self.mixed else ())))

    topic_prefix: str = dataclasses.field(
        default_factory=lambda: f'race-{uuid.uuid4().hex[:8]}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grant:
    """One device that a claimer was given.

    :ivar seconds: from the first look for a device, refusals included
    :ivar at: when, on the clock that all processes of a machine share
    """

    device: str
    assignment: str
    seconds: float
    at: float


# What one process of claimers saw: what it was given, and errors.
_Answer = tuple[list[Grant], list[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What claimers were grants, and what the database says afterwards.

    :ivar seconds: from the start to the last grant
    :ivar doubles: devices that two claimers were given, or that have two
        active assignments
    :ivar lost: claims that were granted but are not in the database
    :ivar held: types held by card, each card named by its host and id
    :ivar left: what could still be claimed, by type, over all hosts
    :ivar errors: errors other than the named refusal
    """

    granted: int
    seconds: float
    latencies: tuple[float, ...]
    doubles: int
    lost: int
    errors: tuple[str, ...]
    held: dict[tuple[str, str], list[str]] = dataclasses.field(
        default_factory=dict)
    left: dict[str, int] = dataclasses.field(default_factory=dict)


def configuration(setting: Setting) -> cfg.ConfigOpts:
    """A configuration of its own for one process of the race."""
    conf = cfg.ConfigOpts()
    conf_gpgpu.register_opts(conf)
    api.register_opts(conf)
    conf([], project='gpgpu', default_config_files=[])
    conf.set_override('transport_url', setting.transport, 'gpgpu')
    conf.set_override('topic_prefix', setting.topic_prefix, 'gpgpu')
    conf.set_override('rpc_timeout', 60, 'gpgpu')
    conf.set_override('max_pool_size', 20, 'database')
    conf.set_override('max_overflow', 50, 'database')
    return conf


def set_up(setting: Setting) -> api.Database:
    """Schema, one variant and hosts x devices cards."""
    db = api.Database(configuration(setting), setting.database)
    migration.sync(db.engine)
    functions = tuple(
        pci.PCIFunction(
            id=f'/devices/pci0000:00/{card:02x}.0',
            address=f'0000:{card:02x}:00.0', vendor='10de',
            device='2330', numa_node=card * 2 // setting.devices)
        for card in range(setting.devices))
    for number in range(setting.hosts):
        reports.report(db, report_obj.HostReport(
            host=f'h{number}', node=f'h{number}',
            node_uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, f'h{number}')),
            functions=functions,
            vgpu_capabilities=_capabilities(setting, functions)))
    variant_admin.create(db, admin.VariantInfo(
        name=VARIANT, vendor='10de', device='2330',
        mix_policy=setting.mix_policy))
    for name in TYPES if setting.mixed else ():
        vgpu_type_admin.set_enabled(db, VARIANT, name, None, enabled=True)
    if setting.unsafe:
        _drop_unique_key(db)
    return db


def _capabilities(setting: Setting, functions: Iterable[pci.PCIFunction],
                  ) -> dict[str, capability.VGPUCapability]:
    if not setting.mixed:
        return {}
    vgpus = capability.VGPUCapability(
        mechanism=capability.VGPUMechanism.MDEV, types=tuple(
            vgpu_type.VGPUType(name=name, type_id=name, max_instances=most)
            for name, most in TYPES.items()))
    return {function.id: vgpus for function in functions}


def _drop_unique_key(db: api.Database) -> None:
    kind = 'INDEX' if db.engine.dialect.name == 'mysql' else 'CONSTRAINT'
    with db.engine.begin() as connection:
        if kind == 'INDEX':
            # The foreign key uses the unique index; give it another one.
            connection.execute(sa.text(
                'CREATE INDEX ix_race ON assignments (device_id)'))
        connection.execute(sa.text(
            f'ALTER TABLE assignments DROP {kind} '
            'uq_assignments_device_id_active'))


def _lock_nothing(session: orm.Session, name: str) -> models.Host | None:
    return host_db.find(session, name)


def _swap_anyway(session: orm.Session, device: models.Device,
                 event: object) -> None:
    """A state change that does not look whether somebody was faster."""
    # Wide enough open for a second claimer on any machine.
    time.sleep(0.01)
    session.execute(sa.update(models.Device).where(
        models.Device.id == device.id).values(state='provisioning'))


def _conduct(setting: Setting, ready: typing.Any, end: typing.Any) -> None:
    if setting.unsafe:
        host_db.lock = _lock_nothing
        # All three guards: lock, unique key, compare-and-swap.
        device_db.transition = _swap_anyway
    conf = configuration(setting)
    conductor = service.ConductorService(
        conf,
        rpc_transport.get_transport(conf),
        api.Database(conf, setting.database),
    )
    conductor.start()
    ready.set()
    # Until the other end is closed, which also happens when whoever held the
    # race was killed. An Event would hang its setter once a waiter has died.
    end.poll(None)
    conductor.stop()


def _claim_all(
    setting: Setting,
    claimer: str,
    calls: conductor_api.ConductorAPI,
    grants: list[Grant],
    errors: list[str],
) -> None:
    hosts = list(range(setting.hosts))
    random.shuffle(hosts)
    # Hosts that may have some, by what is asked for.
    open_: dict[str, list[int]] = {
        name: list(hosts) for name in setting.classes}
    number = 0
    began = time.perf_counter()
    while open_:
        number += 1
        name = random.choice(sorted(open_))
        hosts = open_[name]
        names = {name}
        if setting.mixed and random.random() < _PAIRS:
            names.add(random.choice(setting.classes))
        try:
            granted = calls.claim(
                gpgpu_context.admin(), claim_obj.ClaimRequest(
                    instance_uuid=f'{claimer}-{number}',
                    host=f'h{hosts[0]}',
                    request=request.Request(demands=tuple(
                        request.Demand(resource_class=name, count=1)
                        for name in sorted(names)))))
        except exception.ClaimDenied as exc:
            if exc.reason not in _REFUSALS:
                errors.append(str(exc)[:300])
            # There may be room for one of two.
            if len(names) == 1:
                _pass_over(open_, name)
            continue
        except Exception as exc:  # noqa: BLE001 - the race reports it
            errors.append(f'{type(exc).__name__}: {exc}'[:300])
            _pass_over(open_, name)
            continue
        now = time.perf_counter()
        grants += [
            Grant(
                device=assignment.device_uuid,
                assignment=assignment.uuid,
                seconds=now - began,
                at=now,
            )
            for assignment in granted.assignments
        ]
        began = now
        hosts.append(hosts.pop(0))


# How many of the requests are for two types.
_PAIRS = 0.25

_REFUSALS = (request.Reason.NOT_ENOUGH_AVAILABLE,
             request.Reason.TYPE_CONFLICT)


def _pass_over(open_: dict[str, list[int]], name: str) -> None:
    """Nothing is given back in a race: a host without room stays so."""
    open_[name].pop(0)
    if not open_[name]:
        del open_[name]


def _compete(setting: Setting, name: str, barrier: typing.Any,
             results: typing.Any) -> None:
    conf = configuration(setting)
    calls = conductor_api.ConductorAPI(conf, rpc_transport.get_transport(conf))
    grants: list[Grant] = []
    errors: list[str] = []
    crowd.run(
        barrier, setting.threads,
        lambda: calls.variant_list(gpgpu_context.admin()),
        lambda number: _claim_all(
            setting, f'{name}-{number}', calls, grants, errors))
    results.put((grants, errors))


def run(setting: Setting) -> Outcome:
    """Hold the race on an empty database."""
    db = set_up(setting)
    if setting.transport.startswith('fake'):
        began, answers = _run_here(setting, db)
    else:
        began, answers = _run_processes(setting)
    return _judge(db, began, answers)


def _run_here(setting: Setting,
              db: api.Database) -> tuple[float, list[_Answer]]:
    conf = configuration(setting)
    conductor = service.ConductorService(
        conf, rpc_transport.get_transport(conf), db)
    conductor.start()
    results: queue.Queue[typing.Any] = queue.Queue()
    began: list[float] = []
    barrier = threading.Barrier(
        setting.processes, action=lambda: began.append(time.perf_counter()))
    claimers = [
        threading.Thread(target=_compete, args=(
            setting, f'p{number}', barrier, results))
        for number in range(setting.processes)]
    try:
        for claimer in claimers:
            claimer.start()
        answers = [results.get(timeout=240) for _ in claimers]
    finally:
        conductor.stop()
    return began[0], answers


def _run_processes(setting: Setting) -> tuple[float, list[_Answer]]:
    context = multiprocessing.get_context('spawn')
    end, stop = context.Pipe(duplex=False)
    ready = [context.Event() for _ in range(setting.conductors)]
    barrier = context.Barrier(setting.processes + 1)
    results = context.Queue()
    conductors = [context.Process(
        target=_conduct, args=(setting, event, end)) for event in ready]
    claimers = [context.Process(
        target=_compete, args=(setting, f'p{number}', barrier, results))
        for number in range(setting.processes)]
    try:
        for child in conductors:
            child.start()
        # A call that is sent before the first conductor has made its queue
        # is lost, and its sender waits in vain.
        for event in ready:
            _until(event.is_set, conductors, 'a conductor to serve')
        for child in claimers:
            child.start()
        _until(lambda: barrier.n_waiting == setting.processes,
               [*conductors, *claimers], 'the claimers')
        began = time.perf_counter()
        barrier.wait(timeout=60)
        answers: list[_Answer] = []
        while len(answers) < setting.processes:
            _until(lambda: not results.empty(), conductors, 'an answer')
            answers.append(results.get(timeout=60))
        return began, answers
    finally:
        stop.close()
        _end([*claimers, *conductors])


def _until(done: Callable[[], bool], children: Sequence[typing.Any],
           what: str) -> None:
    """Wait for something that needs all the children alive."""
    for _ in range(24000):
        if done():
            return
        if any(child.exitcode is not None for child in children):
            raise RuntimeError(f'a process of the race died; see above. '
                               f'Waited for {what}')
        time.sleep(0.01)
    raise RuntimeError(f'waited in vain for {what}')


def _end(children: Sequence[typing.Any]) -> None:
    until = time.monotonic() + 10
    for child in children:
        if child.pid is None:
            continue
        child.join(max(0, until - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join()


def _judge(db: api.Database, began: float,
           answers: list[_Answer]) -> Outcome:
    grants = [grant for part, _ in answers for grant in part]
    with db.reader() as session:
        active = list(session.execute(
            sa.select(models.Device.uuid, models.Assignment.uuid)
            .join(models.Assignment)
            .where(models.Assignment.active == 1)))
        held: dict[tuple[str, str], list[str]] = (
            collections.defaultdict(list))
        for host, card, name in session.execute(
                sa.select(models.Host.name, models.Device.stable_id,
                          models.Assignment.vgpu_type)
                .join(models.Device,
                      models.Assignment.device_id == models.Device.id)
                .join(models.Host, models.Device.host_id == models.Host.id)
                .where(models.Assignment.active == 1)):
            held[host, card.partition('/mdev')[0]].append(name)
    left: collections.Counter[str] = collections.Counter()
    for info in vgpu_type_admin.list_all(db):
        left[info.vgpu_type] += info.remaining_capacity
    doubles = {
        device for owners in (
            collections.Counter(grant.device for grant in grants),
            collections.Counter(device for device, _ in active))
        for device, count in owners.items() if count > 1}
    known = {assignment for _, assignment in active}
    return Outcome(
        granted=len(grants),
        seconds=max((grant.at for grant in grants), default=began) - began,
        latencies=tuple(sorted(grant.seconds for grant in grants)),
        doubles=len(doubles),
        lost=sum(grant.assignment not in known for grant in grants),
        errors=tuple(error for _, part in answers for error in part),
        held=dict(held), left=dict(left))
