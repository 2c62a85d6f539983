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
"""One host: nova-compute's part of the plugin, guests, and their users.

The resource tracker, its book, the table of spawn's steps, the worker and the
backends are the real ones. Nova, Placement and the kernel are modelled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import logging
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

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignments
from gpgpu_plugin.compute import book_lock
from gpgpu_plugin.compute import manager
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.compute import worker
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_api
from gpgpu_plugin.rpc import transport as rpc_transport
from gpgpu_plugin.virt import liveness
from gpgpu_plugin.virt import steps
from tests.storm import messages
from tests.storm import truth as truth_mod

LOG = logging.getLogger(__name__)

VARIANT = 'H100'
MACHINE = 'hgx-h100-8'
BUILDERS = 6
TIMEOUT = 3
"""Seconds that a host waits for an answer."""

LEASE = 10
BUILDING = 0.2
CLEANING = 0.15
"""Seconds, on average, that libvirt and a reset take."""


# Back at the broker as soon as it can be reached.
_CONF = """
[oslo_messaging_rabbit]
kombu_reconnect_delay = 0.1
"""
_HOUR = 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One start of a host.

    :ivar folder: what outlives the start
    :ivar seed: of all that it chooses
    """

    name: str
    folder: pathlib.Path
    transport: str
    topic_prefix: str
    seed: str

    @property
    def node_uuid(self) -> str:
        """Return the UUID of its compute node."""
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name))


@contextlib.contextmanager
def kernel_busy(folder: pathlib.Path) -> Iterator[None]:
    """Keep others from the host's kernel: it ends what it has begun.

    A process may be killed at any moment, but not in the middle of a system
    call; the fake kernel is a part of the process.
    """
    with (folder / 'kernel').open('w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Kernel(fake_kernel.FakeKernel):
    """Kernel that outlives whoever calls it."""

    def write(self, path: str, value: str) -> None:
        with kernel_busy(pathlib.Path(self._root).parent):
            super().write(path, value)


def machine(setting: Setting) -> fake_host.FakeHost:
    """Return the host's fake machine, which is made once."""
    with mock.patch.object(fake_kernel, 'FakeKernel', _Kernel):
        return fake_host.FakeHost.for_machine(
            MACHINE, str(setting.folder / 'sys'))


def configuration(setting: Setting) -> cfg.ConfigOpts:
    """Return the configuration of a host."""
    conf = cfg.ConfigOpts()
    conf_gpgpu.register_opts(conf)
    (setting.folder / 'conf').write_text(_CONF)
    conf([], project='gpgpu', default_config_files=[
        str(setting.folder / 'conf')])
    for name, value in (
            ('transport_url', setting.transport),
            ('topic_prefix', setting.topic_prefix),
            ('state_path', str(setting.folder)),
            ('rpc_timeout', TIMEOUT), ('claim_lease', LEASE),
            ('digest_interval', 10)):
        conf.set_override(name, value, 'gpgpu')
    return conf


class Host:
    """A start of nova-compute."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._rng = random.Random(setting.seed)
        self.truth = truth_mod.Truth(setting.folder)
        self._offset = 0.0
        conf = configuration(setting)
        self._transport = rpc_transport.get_transport(conf)
        api = conductor_api.ConductorAPI(conf, self._transport)
        self.mail = messages.Mail(
            setting.folder, api._client, self._rng, self.truth)
        api._client = messages.UnreliableClient(
            api._client, self.mail, self._rng)
        self.tracker = resource_tracker.ResourceTracker(
            conf, setting.name, truth_mod.WatchedHost(
                machine(setting), self.truth, self._owner,
                lambda: time.sleep(self._rng.expovariate(1 / CLEANING))),
            api, types.SimpleNamespace(
                get_allocations_for_resource_provider=self._allocations),
            self._find_orphans, clock=lambda: time.monotonic() + self._offset)
        self._worker = worker.Worker(
            self.tracker.run_once, 1, setting.name)
        self._calm = threading.Event()
        self._left = list(self.truth.guests())
        self._builders = [
            threading.Thread(target=self._build_on, daemon=True)
            for _ in range(BUILDERS)]
        self._conf = conf

    # -- Nova, as far as it is asked ----------------------------------------

    def _owner(self, assignment_uuid: str) -> str:
        return next(
            (assignment.instance_uuid
             for assignment in self.tracker.assignments.all()
             if assignment.uuid == assignment_uuid),
            f'nobody (assignment {assignment_uuid} is not in the book)')

    def _allocations(self, context: object, provider: str) -> object:
        return types.SimpleNamespace(allocations={
            instance: {'resources': {
                naming.resource_class(VARIANT): len(devices)}}
            for instance, devices in self.truth.guests().items()})

    def _find_orphans(self, assignments: Sequence[claim_obj.Assignment], *,
                      spawning: bool = False,
                      migration_uuid: str | None = None) -> Collection[str]:
        """Return what virt.orphans.find would; nothing is moved here."""
        if not assignments:
            return frozenset()
        if self.truth.of_guest(assignments[0].instance_uuid):
            return frozenset()
        if spawning:
            return frozenset(assignment.uuid for assignment in assignments)
        # Nova knows only instances that run here.
        return liveness.unused(
            assignments, None, self._setting.name, liveness.Domain.ABSENT)

    # -- life ---------------------------------------------------------------

    def start(self) -> None:
        """Do what virt.service.init_host does, and begin to build."""
        self._book_lock = book_lock.acquire(
            assignments.path_of(self._conf, self._setting.name))
        server = rpc_transport.server(
            self._transport, rpc_transport.compute_topic(self._conf),
            self._setting.name, [manager.ComputeManager(
                self._woken(self.tracker.refresh),
                self._woken(self.tracker.assignments_changed),
                # Operators ask for it, of whom there are none.
                lambda assignments: ())])
        server.start()
        self.tracker.set_node(self._setting.name, self._setting.node_uuid)
        self._worker.run_once()
        if not self.tracker.session.is_fenced:
            self.tracker.restore()
        self._worker.start()
        self._worker.wake()
        for builder in self._builders:
            builder.start()

    def _woken(self, work: typing.Callable[[], None],
               ) -> typing.Callable[[], None]:
        def wake() -> None:
            work()
            self._worker.wake()
        return wake

    def calm_down(self) -> None:
        """Build and delete nothing more, and deliver what is late."""
        self._calm.set()
        for builder in self._builders:
            builder.join()
        self.mail.flush()

    def drain(self) -> None:
        """Delete all instances."""
        for instance in self.truth.guests():
            self._delete(instance)

    def pass_time(self) -> None:
        """Let ten minutes pass, and do what is due then.

        Never more than six hours: the daily comparison would find what
        messages and digests have to find.
        """
        self._offset = min(self._offset + _HOUR / 6, 6 * _HOUR)
        self._worker.wake()

    # -- users --------------------------------------------------------------

    def _build_on(self) -> None:
        instance = None
        while not self._calm.is_set():
            if self._left:
                # Of an earlier start.
                with contextlib.suppress(IndexError):
                    self._delete(self._left.pop())
                continue
            if instance is None or self._rng.random() < 0.7:
                instance = str(uuid.UUID(int=self._rng.getrandbits(128)))
            # Else it was shelved, or its build failed, and comes back.
            if self._is_built(instance, self._rng.choice((1, 1, 2, 3))):
                if self._calm.wait(self._rng.uniform(0, 0.8)):
                    return
                self._delete(instance)
            else:
                self._calm.wait(self._rng.uniform(0.2, 1.2))

    def _is_built(self, instance: str, count: int) -> bool:
        name = naming.resource_class(VARIANT)
        with self.tracker.builds.running(instance):
            try:
                steps.execute(steps.Spawn(
                    tracker=self.tracker, request=claim_obj.ClaimRequest(
                        instance_uuid=instance, host=self._setting.name,
                        request=request.Request(demands=(request.Demand(
                            resource_class=name, count=count),))),
                    spawn=functools.partial(self._spawn, instance),
                    destroy=lambda: self.truth.end(instance),
                    claimed=lambda asked, claim: self.truth.count('granted')))
            except exception.ClaimDenied:
                self.truth.count('denied')
            except exception.ConductorUnavailable:
                self.truth.count('timed out')
            except (exception.GPUPluginException, _Failed,
                    oslo_messaging.RemoteError) as exc:
                LOG.info('Build of %s failed: %s', instance, exc)
                self.truth.count('failed')
            except Exception:
                LOG.exception('Build of %s', instance)
                self.truth.count('unexpected')
            else:
                self.truth.count('built')
                return True
        self._worker.wake()
        return False

    def _spawn(self, instance: str) -> None:
        if self._rng.random() < 0.05:
            raise _Failed('as libvirt does now and then')
        time.sleep(self._rng.expovariate(1 / BUILDING))
        self.truth.start(instance, [
            assignment.stable_id for assignment
            in self.tracker.assignments.of_instance(instance)])

    def _delete(self, instance: str) -> None:
        self.truth.end(instance)
        self.tracker.release_instance(instance)
        self.truth.count('deleted')
        self._worker.wake()


class _Failed(Exception):
    """A guest does not start."""


def run(setting: Setting,
        commands: multiprocessing.connection.Connection) -> None:
    """Be a host until the other end of the pipe is closed.

    It obeys the names of methods that it reads from the pipe, and answers
    each one with its name when it is done.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(
        filename=setting.folder / 'log', level=logging.INFO, force=True,
        format='%(asctime)s %(process)d %(threadName)s %(levelname)s '
               '%(name)s %(message)s')
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
