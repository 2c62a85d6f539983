# SPDX-License-Identifier: Apache-2.0
"""The host aggregate from which other instances are kept away."""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

import openstack
from keystoneauth1 import exceptions as keystone_exceptions
from openstack import connection as sdk_connection
from openstack import exceptions as sdk_exceptions
from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import threads
from gpgpu_plugin.db import api
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import group
from gpgpu_plugin.db import migration
from gpgpu_plugin.domain import event
from gpgpu_plugin.domain import naming

LOG = logging.getLogger(__name__)

# -- Nova's host aggregates, and what Placement has of their hosts.


ERRORS = (sdk_exceptions.SDKException, keystone_exceptions.ClientException)
"""Errors of a cloud that does not answer, or refuses."""

_JSON = typing.Any
"""An answer of a service; nothing but its reader knows its shape."""

_WITH_UUID = '2.41'
"""Microversion of Nova from which aggregates have UUIDs."""

_WITH_GENERATION = '1.19'
"""Microversion of Placement from which a provider's aggregates are changed
only by those who know its generation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostAggregate:
    """A host aggregate of Nova.

    :ivar uuid: by which Placement knows it
    :ivar hosts: names of its nova-compute services
    """

    id: int
    uuid: str
    metadata: Mapping[str, str]
    hosts: frozenset[str]


class AggregateCloud:
    """Nova and Placement of a cloud.

    Each method raises ERRORS if a service does not do what it is asked for.
    """

    def __init__(self, connection: sdk_connection.Connection) -> None:
        self._connection = connection

    def find(self, name: str) -> HostAggregate | None:
        """Return the aggregate of a name; None: there is none."""
        found = _json(self._connection.compute.get, '/os-aggregates',
                      microversion=_WITH_UUID)
        for aggregate in found['aggregates']:
            if aggregate['name'] == name:
                return _aggregate(aggregate)
        return None

    def create(self, name: str) -> HostAggregate:
        """Create an aggregate of no availability zone."""
        return _aggregate(_json(
            self._connection.compute.post, '/os-aggregates',
            microversion=_WITH_UUID,
            json={'aggregate': {'name': name}})['aggregate'])

    def set_metadata(self, aggregate: HostAggregate,
                     metadata: Mapping[str, str]) -> HostAggregate:
        """Add metadata to an aggregate, and return it as it is then."""
        return _aggregate(self._act(
            aggregate, 'set_metadata', metadata=metadata)['aggregate'])

    def add_host(self, aggregate: HostAggregate, host: str) -> None:
        """Add a host to an aggregate."""
        self._act(aggregate, 'add_host', host=host)

    def remove_host(self, aggregate: HostAggregate, host: str) -> None:
        """Remove a host from an aggregate."""
        self._act(aggregate, 'remove_host', host=host)

    def _act(self, aggregate: HostAggregate, action: str,
             **values: object) -> _JSON:
        return _json(
            self._connection.compute.post,
            f'/os-aggregates/{aggregate.id}/action',
            microversion=_WITH_UUID, json={action: values})

    def placed(self, aggregate: HostAggregate) -> frozenset[str]:
        """Return the UUIDs of the compute nodes that Placement has in it.

        Nova tells Placement of each move, and only logs if that fails.
        """
        found = _json(
            self._connection.placement.get,
            f'/resource_providers?member_of={aggregate.uuid}',
            microversion=_WITH_GENERATION)
        return frozenset(provider['uuid']
                         for provider in found['resource_providers'])

    def place(self, aggregate: HostAggregate, node_uuid: str) -> None:
        """Have Placement know that a compute node is in an aggregate.

        "nova-manage placement sync_aggregates" does the same.
        """
        path = f'/resource_providers/{node_uuid}/aggregates'
        placement_api = self._connection.placement
        before = _json(placement_api.get, path,
                       microversion=_WITH_GENERATION)
        _json(placement_api.put, path, microversion=_WITH_GENERATION, json={
            **before,
            'aggregates': sorted({*before['aggregates'], aggregate.uuid})})


def _aggregate(answer: Mapping[str, _JSON]) -> HostAggregate:
    # Nova leaves both out of its answer when it has created one.
    return HostAggregate(id=answer['id'], uuid=answer['uuid'],
                         metadata=dict(answer.get('metadata', {})),
                         hosts=frozenset(answer.get('hosts', ())))


def _json(send: Callable[..., _JSON], path: str,
          **kwargs: object) -> _JSON:
    response = send(path, raise_exc=False, **kwargs)
    sdk_exceptions.raise_from_response(response)
    return response.json()


# -- The host aggregate from which instances without GPUs are kept away.
#
# Nova keeps them away (``[scheduler] enable_isolated_aggregate_filtering``).
# This thread makes the hosts with groups of GPUs its members. It calls Nova's
# API only after a host got or lost its groups, while a move fails, and every
# ten minutes. No call of a host or a scheduler waits for it.
#
# Any number of conductors have the thread, and one at a time compares. The
# others learn of its moves from Nova's list of members.


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

_MARK = naming.AGGREGATE_MARK
_METADATA = {_MARK: 'true', naming.GPU_HOST_KEY: 'required'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Move:
    """A host that enters or leaves the aggregate, and why."""

    kind: event.Kind
    host: str
    detail: str


def connect(conf: cfg.ConfigOpts) -> AggregateCloud:
    """Return the configured cloud, without a call.

    :raises ConfigInvalid: clouds.yaml or the environment does not describe it
    """
    name: str | None = conf.gpgpu_conductor.isolation_cloud
    try:
        return AggregateCloud(openstack.connect(
            cloud=name, api_timeout=TIMEOUT))
    except (sdk_exceptions.ConfigException,
            keystone_exceptions.MissingRequiredOptions) as exc:
        raise exception.ConfigInvalid(
            option='[gpgpu_conductor] isolation_cloud',
            reason=f'isolation_aggregate needs a cloud of clouds.yaml, or the '
                   f'environment variables of one: {exc}') from exc


class Isolation:
    """Keeper of the aggregate ``[gpgpu_conductor] isolation_aggregate``.

    :param cloud: default the configured one
    :param clock: seconds of a clock that never goes back
    :raises ConfigInvalid: the cloud is not described
    """

    def __init__(self, conf: cfg.ConfigOpts, database: api.Database,
                 cloud: AggregateCloud | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._name: str = conf.gpgpu_conductor.isolation_aggregate
        self._db = database
        self._clock = clock
        self._stopping = threading.Event()
        self._failed: set[str] = set()
        # Hosts with which the comparison under way had to do something.
        self._tried: set[str] = set()
        # The hosts that were found right, and until when they are believed.
        self._right: tuple[Sequence[group.GPUHost], float] = ((), 0.0)
        # When hosts had groups last; others may have had some until now.
        self._seen: dict[str, float] = {}
        self._began_at = clock()
        self._thread = threads.PeriodicThread(
            'gpgpu-isolation', (INTERVAL, self.run_once))
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
            with migration.hold_lock_if_free(
                    self._db.engine, migration.ISOLATION_LOCK) as is_held:
                if is_held:
                    self._compare(hosts)
        except (*ERRORS,
                exception.GPUPluginException) as exc:
            self._fail('', str(exc).partition('\n')[0])
        except Exception:
            # The database's driver has errors of its own.
            LOG.exception('Cannot update the hosts of aggregate '
                          '%(aggregate)s, trying again in %(seconds)d s',
                          {'aggregate': self._name, 'seconds': INTERVAL})
        else:
            self._succeed('')

    def _hosts(self) -> Sequence[group.GPUHost]:
        """Return the hosts with groups.

        Conductors that do not compare have to know them, too: they may
        compare next.
        """
        with self._db.reader() as session:
            hosts = group.load_gpu_hosts(session)
        self._seen |= dict.fromkeys(
            (host.name for host in hosts), self._clock())
        return hosts

    def _compare(self, hosts: Sequence[group.GPUHost]) -> None:
        if self._is_right(hosts):
            return
        self._tried = {''}
        aggregate = self._aggregate()
        moves = self._moves({host.name for host in hosts}, aggregate)
        self._place(hosts, aggregate)
        for move in moves:
            if not self._stopping.is_set():
                self._try(aggregate, move)
        # What moved is compared with Placement next time.
        is_right = self._tried == {''} and not self._stopping.is_set()
        self._failed &= self._tried
        self._right = (hosts, self._right_until(hosts, aggregate)) if (
            is_right) else ((), 0.0)

    def _place(self, hosts: Sequence[group.GPUHost],
               aggregate: HostAggregate) -> None:
        """Have Placement know of all members that Nova has."""
        placed = self._cloud.placed(aggregate)
        for host in hosts:
            if (host.name in aggregate.hosts and host.node_uuid not in placed
                    and not self._stopping.is_set()
                    and self._do(host.name, 'Placement', functools.partial(
                        self._cloud.place, aggregate, host.node_uuid))):
                LOG.info(
                    'Corrected in Placement that %(host)s is in aggregate '
                    '%(aggregate)s, as Nova has it',
                    {'host': host.name, 'aggregate': self._name})

    def _right_until(self, hosts: Sequence[group.GPUHost],
                     aggregate: HostAggregate) -> float:
        """Return when Nova is to be read again, or a member may leave."""
        now = self._clock()
        without = aggregate.hosts - {host.name for host in hosts}
        return min((now + REREAD, *(at for at in map(
            self._leaves_at, without) if at > now)))

    def _leaves_at(self, name: str) -> float:
        """Return when a member that has no groups now leaves."""
        return self._seen.get(name, self._began_at) + LEAVE_AFTER

    def _is_right(self, hosts: Sequence[group.GPUHost]) -> bool:
        """Return whether nothing changed that decides about the members."""
        right, until = self._right
        return (self._clock() < until
                and {host.name for host in hosts}
                == {host.name for host in right})

    def _aggregate(self) -> HostAggregate:
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
                       f'another name in [gpgpu_conductor] '
                       f'isolation_aggregate, or the property {_MARK}=true of '
                       f'the aggregate')
        if not _METADATA.items() <= found.metadata.items():
            found = self._cloud.set_metadata(found, _METADATA)
        return found

    def _moves(self, wanted: Collection[str],
               aggregate: HostAggregate) -> list[_Move]:
        """Return the moves; a member that lacked groups for long leaves."""
        now, name = self._clock(), f'aggregate {self._name}'
        return [
            *(_Move(kind='isolate', host=host,
                    detail=f'{name}: it has groups of GPUs')
              for host in sorted(set(wanted) - aggregate.hosts)),
            *(_Move(kind='unisolate', host=host,
                    detail=f'{name}: it has had no groups of GPUs for '
                           f'{LEAVE_AFTER / 60:.0f} minutes')
              for host in sorted(aggregate.hosts - set(wanted))
              if self._leaves_at(host) <= now)]

    def _try(self, aggregate: HostAggregate, move: _Move) -> None:
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
