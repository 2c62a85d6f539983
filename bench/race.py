# SPDX-License-Identifier: Apache-2.0
"""Race of many claimers, through the whole path of a claim.

Conductors and claimers are processes that talk over RabbitMQ. The test of
exactness and the benchmark run the same race.
"""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import multiprocessing.synchronize
import queue
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from bench import claimer
from bench import crowd
from bench import outcome
from bench import processes as processes_mod
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import service
from gpgpu_plugin.conductor.admin import group
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import hosts

VARIANT = 'BENCH'
TYPES = {'T4-1Q': 16, 'T4-4Q': 4, 'T4-16Q': 1}
"""Maximum number of vGPUs on one GPU, by type."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Parameters of one race.

    :ivar transport: URL; ``fake:/`` keeps everything in this process
    :ivar topic_prefix: separates the race from others on the same broker
    :ivar mixed: claimers request whole GPUs and vGPUs of three types,
        sometimes two of these at once
    :ivar view: claimers see what is free, as schedulers do; otherwise they
        claim until every host has refused them
    :ivar mix_policy: a domain.vgpu.VGPUMixPolicy
    :ivar claim: what conductors call instead of conductor.claims.claim, to
        show what all the rest costs; None: that function
    :ivar forked: its processes are forks of one that loaded the modules,
        which is quicker for tests; a measurement would show their memory
    :ivar unsafe: without the host's lock, the unique key and the
        compare-and-swap, to show that the race finds what they prevent
    """

    database: str
    transport: str
    hosts: int = 25
    devices: int = 8
    conductors: int = 2
    processes: int = 8
    threads: int = 8
    mixed: bool = False
    view: bool = False
    mix_policy: str = vgpu.VGPUMixPolicy.SAME_TYPE.value
    claim: Callable[..., claim_obj.Claim] | None = None
    forked: bool = False
    unsafe: bool = False

    @property
    def classes(self) -> tuple[str, ...]:
        """Resource classes that claimers request."""
        return tuple(naming.resource_class(VARIANT, name) for name in (
            naming.PASSTHROUGH, *(TYPES if self.mixed else ())))

    topic_prefix: str = dataclasses.field(
        default_factory=lambda: f'race-{uuid.uuid4().hex[:8]}')


def configuration(setting: Setting) -> cfg.ConfigOpts:
    """Return a new configuration for one process of the race."""
    conf = cfg.ConfigOpts()
    conf_gpgpu.register_opts(conf)
    api.register_opts(conf)
    conf([], project='gpgpu', default_config_files=[])
    conf.set_override('transport_url', setting.transport, 'gpgpu')
    conf.set_override('topic_prefix', setting.topic_prefix, 'gpgpu')
    conf.set_override('rpc_timeout', 60, 'gpgpu')
    # Each claimer speaks for all hosts, which no key allows.
    conf.set_override('sign_calls', False, 'gpgpu')
    conf.set_override('max_pool_size', 20, 'database')
    conf.set_override('max_overflow', 50, 'database')
    return conf


def set_up(setting: Setting) -> api.Database:
    """Create the schema, one variant, and hosts with GPUs."""
    db = api.Database(configuration(setting), setting.database)
    migration.sync(db.engine)
    for number in range(setting.hosts):
        hosts.store(db, scan(setting, f'h{number}'))
    variant_admin.create(db, admin.VariantInfo(
        name=VARIANT, vendor='10de', device='2330',
        mix_policy=setting.mix_policy))
    for name in TYPES if setting.mixed else ():
        group.set_type_enabled(db, VARIANT, name, None, enabled=True)
    if setting.unsafe:
        _drop_unique_key(db)
    return db


def scan(setting: Setting, host: str) -> report_obj.HostReport:
    """Return what a host reports."""
    functions = tuple(
        pci.PCIFunction(
            id=f'/devices/pci0000:00/{gpu:02x}.0',
            address=f'0000:{gpu:02x}:00.0', vendor='10de',
            device='2330', nvswitches=0, numa_node=gpu * 2 // setting.devices)
        for gpu in range(setting.devices))
    return report_obj.HostReport(
        host=host, node=host, node_uuid=node_uuid(host), functions=functions,
        vgpu_capabilities=_capabilities(setting, functions))


def node_uuid(host: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, host))


def _capabilities(setting: Setting, functions: Iterable[pci.PCIFunction],
                  ) -> dict[str, vgpu.VGPUCapability]:
    if not setting.mixed:
        return {}
    vgpus = vgpu.VGPUCapability(
        mechanism=vgpu.VGPUMechanism.MDEV, types=tuple(
            vgpu.VGPUType(name=name, type_id=name, max_instances=count)
            for name, count in TYPES.items()))
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


def _lock_nothing(session: orm.Session, name: str) -> host_db.HostRow | None:
    return host_db.find(session, name)


def _swap_anyway(
    session: orm.Session,
    changes: Sequence[tuple[device_db.DeviceRow, device_db.DeviceRow]],
) -> None:
    """Change states without checking the states before."""
    # A window that is wide enough for a second claimer on any machine.
    time.sleep(0.01)
    session.execute(sa.update(tables.DEVICES).where(tables.DEVICES.c.id.in_(
        [before.id for before, _ in changes])).values(state='provisioning'))


def conduct(setting: Setting, ready: multiprocessing.synchronize.Event,
             end: multiprocessing.connection.Connection) -> None:
    if setting.unsafe:
        host_db.lock = _lock_nothing
        # All three guards: lock, unique key, compare-and-swap.
        device_db.swap = _swap_anyway
    if setting.claim:
        claims.claim = setting.claim
        # All threads answer at once, as those of no real conductor do.
        logging.getLogger('oslo_messaging._drivers.pool').setLevel(
            logging.ERROR)
    conf = configuration(setting)
    conductor = service.ConductorService(
        conf,
        rpc_transport.get_transport(conf),
        api.Database(conf, setting.database),
    )
    conductor.start()
    service.freeze_loaded()
    ready.set()
    # Wait until the other end is closed, which also happens if the parent was
    # killed. The setter of an Event would hang after a waiter had died.
    end.poll(None)
    conductor.stop()


def _compete(setting: Setting, name: str, barrier: crowd.Barrier,
             results: queue.Queue[outcome.Answer]) -> None:
    conf = configuration(setting)
    calls = conductor_client.ConductorAPI(conf,
                                          rpc_transport.get_transport(conf))
    claimers = claimer.Claimers(
        calls, {f'h{number}': node_uuid(f'h{number}')
                for number in range(setting.hosts)}, setting.classes,
        pairs=setting.mixed)
    crowd.run(
        barrier, setting.threads, claimers.warm_up,
        lambda number: (claimers.claim_seen if setting.view
                        else claimers.claim_unseen)(f'{name}-{number}'))
    results.put((claimers.grants, claimers.errors, time.perf_counter()))


def run(setting: Setting) -> outcome.Outcome:
    """Run the race on an empty database."""
    db = set_up(setting)
    if setting.transport.startswith('fake'):
        began, answers = _run_here(setting, db)
    else:
        began, answers = _run_processes(setting)
    return outcome.judge(db, began, answers)


def _run_here(setting: Setting,
              db: api.Database) -> tuple[float, list[outcome.Answer]]:
    conf = configuration(setting)
    conductor = service.ConductorService(
        conf, rpc_transport.get_transport(conf), db)
    conductor.start()
    results: queue.Queue[outcome.Answer] = queue.Queue()
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


def _run_processes(setting: Setting) -> tuple[float, list[outcome.Answer]]:
    context = (processes_mod.context() if setting.forked
               else multiprocessing.get_context('spawn'))
    end, stop = context.Pipe(duplex=False)
    ready = [context.Event() for _ in range(setting.conductors)]
    barrier = context.Barrier(setting.processes + 1)
    results = context.Queue()
    conductors = [context.Process(
        target=conduct, args=(setting, event, end)) for event in ready]
    claimers = [context.Process(
        target=_compete, args=(setting, f'p{number}', barrier, results))
        for number in range(setting.processes)]
    try:
        for child in conductors:
            child.start()
        # A call that is sent before the first conductor has created its queue
        # is lost, and its sender runs into its timeout.
        for event in ready:
            _until(event.is_set, conductors, 'a conductor to serve')
        for child in claimers:
            child.start()
        _until(lambda: barrier.n_waiting == setting.processes,
               [*conductors, *claimers], 'the claimers')
        began = time.perf_counter()
        barrier.wait(timeout=600)
        answers: list[outcome.Answer] = []
        while len(answers) < setting.processes:
            _until(lambda: not results.empty(), conductors, 'an answer')
            answers.append(results.get(timeout=600))
        return began, answers
    finally:
        stop.close()
        _end([*claimers, *conductors])


def _until(done: Callable[[], bool],
           children: Sequence[multiprocessing.process.BaseProcess],
           what: str) -> None:
    """Wait until a condition holds, for which all children must live."""
    for _ in range(24000):
        if done():
            return
        if any(child.exitcode is not None for child in children):
            raise RuntimeError(f'a process of the race died; see above. '
                               f'Waited for {what}')
        time.sleep(0.01)
    raise RuntimeError(f'waited in vain for {what}')


def _end(children: Sequence[multiprocessing.process.BaseProcess]) -> None:
    until = time.monotonic() + 10
    for child in children:
        if child.pid is None:
            continue
        child.join(max(0, until - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join()
