# SPDX-License-Identifier: Apache-2.0
"""The host aggregate from which instances without GPUs are kept away.

Nova keeps them away (``[scheduler] enable_isolated_aggregate_filtering``).
This thread makes the right hosts its members. Without a threshold it calls
Nova's API only after a host got or lost its groups, while a move fails, and
every ten minutes. With one it reads the aggregate from Nova, and the vCPUs of
hosts with free GPUs from Placement, in each iteration. No call of a host or a
scheduler waits for it.

Any number of conductors have the thread, and one at a time compares. The
others learn of its moves from Nova's list of members.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

import openstack
from keystoneauth1 import exceptions as keystone_exceptions
from openstack import exceptions as sdk_exceptions
from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import isolation_cloud
from gpgpu_plugin.conductor import periodic
from gpgpu_plugin.db import api
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import gpu_host
from gpgpu_plugin.db import sync_lock
from gpgpu_plugin.domain import event
from gpgpu_plugin.domain import isolation as rules
from gpgpu_plugin.domain import naming

LOG = logging.getLogger(__name__)

INTERVAL = 60.0
"""Seconds between two comparisons."""

REREAD = 600.0
"""Seconds after which an aggregate is read again though no host changed."""

LEAVE_AFTER = 1800.0
"""Seconds that a member without groups stays. A variant that is made anew, a
host that starts without its IOMMU and a database that was restored lack groups
for some minutes, in which instances without GPUs would fill the host."""

TIMEOUT = 30.0
"""Seconds that an API may take for an answer."""

_MOST_FAILURES = 3
"""Hosts one after the other of which Placement says nothing, before it is
taken for one that does not answer at all."""

_MARK = naming.AGGREGATE_MARK
_METADATA = {_MARK: 'true', naming.GPU_HOST_KEY: 'required'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Move:
    """A host that enters or leaves the aggregate, and why."""

    kind: event.Kind
    host: str
    detail: str


def connect(conf: cfg.ConfigOpts) -> isolation_cloud.Cloud:
    """Return the configured cloud, without a call.

    :raises ConfigInvalid: clouds.yaml or the environment does not describe it
    """
    name: str | None = conf.gpgpu.isolation_cloud
    try:
        return isolation_cloud.Cloud(openstack.connect(
            cloud=name, api_timeout=TIMEOUT))
    except (sdk_exceptions.ConfigException,
            keystone_exceptions.MissingRequiredOptions) as exc:
        raise exception.ConfigInvalid(
            option='[gpgpu] isolation_cloud',
            reason=f'isolation_aggregate needs a cloud of clouds.yaml, or the '
                   f'environment variables of one: {exc}') from exc


class Isolation:
    """Keeper of the aggregate ``[gpgpu] isolation_aggregate``.

    :param cloud: default the configured one
    :param clock: seconds of a clock that never goes back
    :raises ConfigInvalid: the cloud is not described
    """

    def __init__(self, conf: cfg.ConfigOpts, database: api.Database,
                 cloud: isolation_cloud.Cloud | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._name: str = conf.gpgpu.isolation_aggregate
        self._threshold: float | None = conf.gpgpu.isolation_vcpus_per_gpu
        self._db = database
        self._clock = clock
        self._stopping = threading.Event()
        self._failed: set[str] = set()
        # Hosts with which the comparison under way had to do something.
        self._tried: set[str] = set()
        # The hosts that were found right, and until when they are believed.
        self._right: tuple[Sequence[gpu_host.GPUHost], float] = ((), 0.0)
        # When hosts had groups last; others may have had some until now.
        self._seen: dict[str, float] = {}
        self._began_at = clock()
        self._thread = periodic.Periodic(
            'gpgpu-isolation', INTERVAL, self.run_once)
        self._cloud = cloud or connect(conf)

    def start(self) -> None:
        """Begin to keep the aggregate."""
        self._stopping.clear()
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the call under way."""
        self._stopping.set()
        self._thread.stop()

    def run_once(self) -> None:
        """Move the hosts that are not where they belong; never raises."""
        try:
            hosts = self._hosts()
            with sync_lock.held_if_free(
                    self._db.engine, sync_lock.ISOLATION) as is_held:
                if is_held:
                    self._compare(hosts)
        except (*isolation_cloud.ERRORS,
                exception.GPUPluginException) as exc:
            self._fail('', str(exc).partition('\n')[0])
        except Exception:
            # The database's driver has errors of its own.
            LOG.exception('Cannot update the hosts of aggregate '
                          '%(aggregate)s, trying again in %(seconds)d s',
                          {'aggregate': self._name, 'seconds': INTERVAL})
        else:
            self._succeed('')

    def _hosts(self) -> Sequence[gpu_host.GPUHost]:
        """Return the hosts with groups.

        Conductors that do not compare have to know them, too: they may
        compare next.
        """
        with self._db.reader() as session:
            hosts = gpu_host.load(session)
        self._seen |= dict.fromkeys(
            (host.name for host in hosts), self._clock())
        return hosts

    def _compare(self, hosts: Sequence[gpu_host.GPUHost]) -> None:
        if self._is_right(hosts):
            return
        self._tried = {''}
        aggregate = self._aggregate()
        free = self._free_of(hosts)
        moves = self._moves(free, aggregate)
        self._place(hosts, aggregate, {move.host for move in moves})
        for move in moves:
            if not self._stopping.is_set():
                self._try(aggregate, move)
        # What moved is compared with Placement next time.
        is_right = self._tried == {''} and not self._stopping.is_set()
        self._failed &= self._tried
        self._right = (hosts, self._right_until(hosts, aggregate)) if (
            is_right) else ((), 0.0)

    def _place(self, hosts: Sequence[gpu_host.GPUHost],
               aggregate: isolation_cloud.Aggregate,
               moving: Collection[str]) -> None:
        """Have Placement agree with Nova about the hosts that do not move."""
        placed = self._cloud.placed(aggregate)
        for host in hosts:
            is_member = host.name in aggregate.hosts
            if (host.name not in moving and not self._stopping.is_set()
                    and is_member != (host.node_uuid in placed)
                    and self._do(host.name, 'Placement', functools.partial(
                        self._cloud.place, aggregate, host.node_uuid,
                        is_member=is_member))):
                LOG.info(
                    'Corrected in Placement that %(host)s is %(place)s '
                    'aggregate %(aggregate)s, as Nova has it',
                    {'host': host.name, 'aggregate': self._name,
                     'place': 'in' if is_member else 'not in'})

    def _right_until(self, hosts: Sequence[gpu_host.GPUHost],
                     aggregate: isolation_cloud.Aggregate) -> float:
        """Return when Nova is to be read again, or a member may leave."""
        now = self._clock()
        without = aggregate.hosts - {host.name for host in hosts}
        return min((now + REREAD, *(at for at in map(
            self._leaves_at, without) if at > now)))

    def _leaves_at(self, name: str) -> float:
        """Return when a member that has no groups now leaves."""
        return self._seen.get(name, self._began_at) + LEAVE_AFTER

    def _is_right(self, hosts: Sequence[gpu_host.GPUHost]) -> bool:
        """Return whether nothing changed that decides about the members.

        With a threshold instances without GPUs do, of which only Placement
        knows.
        """
        right, until = self._right
        return (self._threshold is None and self._clock() < until
                and {host.name for host in hosts}
                == {host.name for host in right})

    def _aggregate(self) -> isolation_cloud.Aggregate:
        """Return the aggregate, which is made first if there is none.

        An empty one may be left from a conductor that ended meanwhile.

        :raises Conflict: there is one that is somebody else's
        """
        found = self._cloud.find(self._name)
        if found is None:
            found = self._cloud.create(self._name)
        elif (found.metadata.get(_MARK) != _METADATA[_MARK]
                and (found.hosts or found.metadata)):
            raise exception.Conflict(
                kind='host aggregate', name=self._name,
                reason=f'gpgpu-conductor does not manage its hosts; set '
                       f'another name in [gpgpu] isolation_aggregate, or the '
                       f'property {_MARK}=true of the aggregate')
        if not _METADATA.items() <= found.metadata.items():
            found = self._cloud.set_metadata(found, _METADATA)
        return found

    def _free_of(self, hosts: Sequence[gpu_host.GPUHost],
                 ) -> dict[str, rules.FreeResources]:
        """Return what hosts have left; those for which it fails are left out.

        :raises ERRORS: it fails for several hosts, one after the other
        """
        free: dict[str, rules.FreeResources] = {}
        failures = 0
        for host in hosts:
            if self._stopping.is_set():
                return {}
            try:
                free[host.name] = self._free(host)
            except isolation_cloud.ERRORS as exc:
                self._tried.add(host.name)
                self._fail(host.name, f'vCPUs: {exc}')
                failures += 1
                if failures == _MOST_FAILURES:
                    raise
            else:
                failures = 0
        return free

    def _moves(self, free: Mapping[str, rules.FreeResources],
               aggregate: isolation_cloud.Aggregate) -> list[_Move]:
        """Return the moves; a host of which nothing is known stays."""
        moves = rules.moves(aggregate.hosts, (
            name for name, left in free.items() if left.is_isolated(
                self._threshold, before=name in aggregate.hosts)))
        kinds: dict[event.Kind, Sequence[str]] = {
            'isolate': moves.enter, 'unisolate': moves.leave}
        now = self._clock()
        return [_Move(kind=kind, host=name,
                      detail=self._detail(free.get(name)))
                for kind, names in kinds.items() for name in names
                if name in free or self._leaves_at(name) <= now]

    def _free(self, host: gpu_host.GPUHost) -> rules.FreeResources:
        """Return what a host has left; Placement is asked if it matters."""
        if self._threshold is None or not host.free_gpus:
            return rules.FreeResources(free_gpus=host.free_gpus)
        return rules.FreeResources(
            free_gpus=host.free_gpus,
            free_vcpus=self._cloud.free_vcpus(host.node_uuid))

    def _detail(self, left: rules.FreeResources | None) -> str:
        aggregate = f'aggregate {self._name}'
        if left is None:
            return (f'{aggregate}: it has had no groups of GPUs for '
                    f'{LEAVE_AFTER / 60:.0f} minutes')
        if self._threshold is None:
            return f'{aggregate}: it has groups of GPUs'
        return (f'{aggregate}: {left.describe()}, each of which needs '
                f'{self._threshold:g}')

    def _try(self, aggregate: isolation_cloud.Aggregate, move: _Move) -> None:
        """Move a host.

        :raises ERRORS: Nova does not answer
        """
        act = (self._cloud.add_host if move.kind == 'isolate'
               else self._cloud.remove_host)
        if self._do(move.host, move.kind,
                    functools.partial(act, aggregate, move.host)):
            self._db.write(lambda session: event_db.add(
                session, move.kind, move.host, detail=move.detail))

    def _do(self, host: str, what: str, act: Callable[[], None]) -> bool:
        """Change where a host is; return whether that was done.

        :raises ERRORS: the service does not answer
        """
        self._tried.add(host)
        try:
            act()
        except sdk_exceptions.HttpException as exc:
            # It may concern this host alone, such as one without a service.
            self._fail(host, f'{what}: {exc}')
            return False
        self._succeed(host)
        return True

    def _fail(self, host: str, reason: str) -> None:
        """Log a failure, once until what failed is done."""
        if host not in self._failed:
            self._failed.add(host)
            LOG.warning(
                'Cannot update the hosts of aggregate %(aggregate)s%(host)s, '
                'trying again every %(seconds)d s: %(reason)s',
                {'aggregate': self._name, 'seconds': INTERVAL,
                 'host': f' ({host})' if host else '', 'reason': reason})

    def _succeed(self, host: str) -> None:
        if host in self._failed:
            self._failed.remove(host)
            LOG.info('The hosts of aggregate %(aggregate)s%(host)s are '
                     'updated again', {
                         'aggregate': self._name,
                         'host': f' ({host})' if host else ''})
