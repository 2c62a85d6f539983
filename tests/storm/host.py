# SPDX-License-Identifier: Apache-2.0
"""One host: the plugin's part of nova-compute on a fake machine.

Resource tracker, book, worker and backends are those of the plugin. Nova,
Placement and the kernel are modelled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import fcntl
import logging
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import random
import signal
import threading
import time
import types
import typing
import uuid
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from unittest import mock

from oslo_config import cfg

from gpgpu_plugin import context as context_mod
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.compute import service
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain import naming
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import virt_driver
from tests.storm import ground_truth
from tests.storm import messages
from tests.storm import moves
from tests.storm import nova as nova_mod
from tests.storm import observed_host
from tests.storm import workload

LOG = logging.getLogger(__name__)

VARIANT = moves.VARIANT
MACHINE = 'hgx-h100-8'
TIMEOUT = 3
"""Seconds that a host waits for an answer."""

DIGEST_INTERVAL = 10
"""Seconds, on average, between two digests. A claim that was not activated
expires after twice as long."""

_CLEANING_TIME = 0.15
"""Mean duration of a cleaning in seconds."""

# Connect to the broker again as soon as it can be reached.
_CONF = """
[oslo_messaging_rabbit]
kombu_reconnect_delay = 0.1
"""
_HOUR = 3600.0

STACKS_FILE = 'stacks'
"""File to which a process writes the stacks of its threads after SIGUSR1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Parameters of one process of a host.

    :ivar folder: folder of the files that outlive the process
    :ivar seed: seed of its random choices
    :ivar hosts: names of all hosts
    """

    name: str
    folder: pathlib.Path
    transport: str
    topic_prefix: str
    seed: str
    hosts: tuple[str, ...]

    @property
    def node_uuid(self) -> str:
        """Return the UUID of the compute node."""
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name))


@contextlib.contextmanager
def kernel_busy(folder: pathlib.Path) -> Iterator[None]:
    """Lock the fake kernel of a host.

    A process may be killed at any moment, but not in the middle of a system
    call. The fake kernel is a part of the process.
    """
    with (folder / 'kernel').open('w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Kernel(fake_kernel.FakeKernel):
    """Fake kernel whose writes are not interrupted by a kill."""

    def write(self, path: str, value: str) -> None:
        with kernel_busy(pathlib.Path(self._root).parent):
            super().write(path, value)


def machine(setting: Setting) -> fake_host.FakeHost:
    """Return the fake machine of a host; the first call creates it."""
    with mock.patch.object(fake_kernel, 'FakeKernel', _Kernel):
        return fake_host.FakeHost.for_machine(
            MACHINE, str(setting.folder / 'sys'), owner=setting.folder.name)


def _nova(setting: Setting) -> nova_mod.Nova:
    """Return the model of Nova, and let the plugin ask it."""
    nova = nova_mod.Nova(setting.folder.parent)
    mock.patch.object(leftovers, 'location_of', nova.location).start()
    mock.patch.object(leftovers, 'record_of',
                      lambda uuid: types.SimpleNamespace(
        deleted=nova.location(uuid) is None)).start()
    mock.patch.object(leftovers, 'location', lambda instance: nova.location(
        instance.uuid)).start()
    return nova


def configuration(setting: Setting) -> cfg.ConfigOpts:
    """Return the configuration of a host."""
    conf = cfg.ConfigOpts()
    conf_gpgpu.register_opts(conf)
    (setting.folder / 'conf').write_text(_CONF)
    conf([], project='gpgpu', default_config_files=[
        str(setting.folder / 'conf')])
    for name, value in (
            ('transport_url', setting.transport),
            ('topic_prefix', setting.topic_prefix), ('sign_calls', False),
            ('rpc_timeout', TIMEOUT), ('digest_interval', DIGEST_INTERVAL)):
        conf.set_override(name, value, 'gpgpu')
    conf.set_override('state_path', str(setting.folder), 'gpgpu_compute')
    return conf


class Host:
    """One process of nova-compute."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._rng = random.Random(setting.seed)
        self.truth = ground_truth.GroundTruth(setting.folder)
        self._offset = 0.0
        self._nova = _nova(setting)
        conf = configuration(setting)
        self._transport = rpc_transport.get_transport(conf)
        api = conductor_client.ConductorAPI(conf, self._transport)
        kind = context_mod.CallerKind.HOST
        channel = api._channel(kind)
        self._messages = messages.DelayedMessages(
            setting.folder, channel.client, self._rng, self.truth)
        api._channels[kind] = dataclasses.replace(
            channel, client=messages.UnreliableClient(
                channel.client, self._messages, self._rng))
        self.tracker = resource_tracker.ResourceTracker(
            conf, setting.name, observed_host.ObservedHost(
                machine(setting), self.truth, self._owner,
                lambda: time.sleep(self._rng.expovariate(
                    1 / _CLEANING_TIME))),
            api, virt_driver.make(types.SimpleNamespace(
                get_allocations_for_resource_provider=self._allocations,
                # Nova removes it at once.
                get_allocs_for_consumer=lambda context, consumer: {
                    'allocations': {}})),
            self._find_orphans, clock=lambda: time.monotonic() + self._offset)
        self._worker = service.Worker(
            self.tracker.run_once, 1, setting.name)
        self._workload = workload.Workload(
            self.tracker, self.truth, self._nova, setting.hosts, self._rng,
            self._worker.wake)
        self._conf = conf

    # -- model of Nova and Placement ----------------------------------------

    def _owner(self, assignment_uuid: str) -> str:
        return next(
            (assignment.instance_uuid
             for assignment in self.tracker.assignments.all()
             if assignment.uuid == assignment_uuid),
            f'nobody (assignment {assignment_uuid} is not in the book)')

    def _allocations(self, context: object, provider: str) -> object:
        return types.SimpleNamespace(allocations={
            consumer: {'resources': {naming.resource_class(VARIANT): gpus}}
            for consumer, gpus
            in self._nova.allocations(self._setting.name).items()})

    def _find_orphans(self, assignments: Sequence[claim_obj.Assignment],
                      operation: assignment_use.Operation | None = None,
                      ) -> Collection[str]:
        return leftovers.find_orphans(assignments, self._domain, operation)

    def _domain(self, instance: str) -> assignment_use.Domain:
        return (assignment_use.Domain.ACTIVE if self.truth.of_guest(instance)
                else assignment_use.Domain.ABSENT)

    # -- commands -----------------------------------------------------------

    def start(self) -> None:
        """Start as compute.service does, then start the workload."""
        self._book_lock = assignment_file.acquire_lock(
            assignment_file.path_of(self._conf, self._setting.name))
        server = rpc_transport.server(
            self._transport, rpc_transport.compute_topic(self._conf),
            self._setting.name, [service.ComputeManager(
                self._woken(self.tracker.refresh),
                self._woken(self.tracker.assignments_changed),
                # Only operators ask for it, and there are none.
                lambda assignments: (), lambda repairs: (),
                lambda **answer: None)])
        server.start()
        self.tracker.set_node(self._setting.name, self._setting.node_uuid)
        self._worker.run_once()
        if not self.tracker.session.is_fenced:
            self.tracker.restore()
        self._worker.start()
        self._worker.wake()
        self._workload.start()

    def _woken(self, work: typing.Callable[[], None],
               ) -> typing.Callable[[], None]:
        def wake() -> None:
            work()
            self._worker.wake()
        return wake

    def stop_workload(self) -> None:
        """End builds, moves and deletes, and send all delayed messages."""
        self._workload.stop()
        self._messages.flush()

    def delete_instances(self) -> None:
        """Delete all instances."""
        self._workload.delete_all()

    def advance_clock(self) -> None:
        """Advance the clock by ten minutes, and run the tasks that are due.

        The sum is limited to six hours: later the daily comparison would find
        what messages and digests have to find.
        """
        self._offset = min(self._offset + _HOUR / 6, 6 * _HOUR)
        self._worker.wake()


def end_with_parent() -> None:
    """Wait for the end of the storm's process, then end this one at once.

    PR_SET_PDEATHSIG does not serve here: the process that forked this one,
    multiprocessing's fork server, lives as long as any of its children.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def run(setting: Setting,
        commands: multiprocessing.connection.Connection) -> None:
    """Run a host until the other end of the pipe is closed.

    Each name that is read from the pipe is that of a method to call. When the
    method has returned, the name is written to the pipe.
    """
    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(
        filename=setting.folder / 'log', level=logging.INFO, force=True,
        format='%(asctime)s %(process)d %(threadName)s %(levelname)s '
               '%(name)s %(message)s')
    stacks = (setting.folder / STACKS_FILE).open('w')
    faulthandler.register(signal.SIGUSR1, stacks)
    try:
        host = Host(setting)
        host.start()
        while True:
            name = commands.recv()
            getattr(host, name)()
            commands.send(name)
    except EOFError:
        os._exit(0)
    except BaseException:
        LOG.exception('Host %s', setting.name)
        os._exit(1)
