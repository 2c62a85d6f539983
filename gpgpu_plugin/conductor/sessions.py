# SPDX-License-Identifier: Apache-2.0
"""Sessions: which start of nova-compute speaks for a host.

Each start begins a session, which the conductor numbers. A call of an older
session, of another machine, or of a host that the database knows less about
than the host does, changes nothing. The check and what the call changes are
one transaction under the host's lock.
"""

from __future__ import annotations

import dataclasses
import json
import typing

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import machine
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import session as objects

LOG = logging.getLogger(__name__)

_HEARD_PRECISION = 60
"""Seconds; ``heard_at`` is not written more often by calls that change
nothing else."""


_LONGEST_VERSION = 64
"""Characters of a version that are stored; a host may send anything."""


class _HostUnknown(Exception):
    """The host begins its first session."""


def compare_timeout(host: str, wanted: float | None, limit: float) -> None:
    """Warn if a host waits for a shorter time than its calls are served.

    :param wanted: seconds that it waits; None: unknown
    :param limit: ``[gpgpu] rpc_timeout`` of this conductor
    """
    if wanted is not None and wanted < limit:
        LOG.warning(
            '[gpgpu] rpc_timeout is %(wanted)s s in nova-compute on '
            '%(host)s, but %(limit)s s in this gpgpu-conductor: '
            'nova-compute stops waiting while its calls still wait for '
            'the database. Set the same value in nova.conf and '
            'gpgpu.conf', {'host': host, 'wanted': wanted, 'limit': limit})


def begin(db: api.Database, request: objects.SessionRequest,
          timeout: float) -> objects.Session:
    """Begin a session (Conductor.begin_session).

    :param timeout: seconds of silence after which another machine may speak
        for the host
    """
    def work(session: orm.Session) -> objects.Session:
        host = host_db.lock(session, request.host)
        if host is None:
            raise _HostUnknown
        return _begin(session, host, request, timeout)

    def first(session: orm.Session) -> objects.Session:
        host = (host_db.lock(session, request.host)
                or _insert_host(session, request))
        return _begin(session, host, request, timeout)
    try:
        return db.write(work)
    except _HostUnknown:
        # In a transaction of its own: MariaDB locks a host also where there
        # is none yet, and the variants are locked before hosts.
        return db.write(first)


def _begin(session: orm.Session, host: models.Host,
           request: objects.SessionRequest,
           timeout: float) -> objects.Session:
    cloud = _check_cloud(session, request)
    _check_node(session, host, request)
    restored = (host.restored or request.doubted
                or _knows_less(host, request))
    if host.start_uuid == request.start_uuid and not restored:
        # The answer to the same request was lost.
        return _view(host, cloud)
    if request.expected < host.session:
        raise exception.SessionOutdated(
            host=host.name, expected=request.expected,
            current=host.session)
    _check_machine(host, request, timeout)
    _accept(session, host, request, restored)
    return _view(host, cloud)


def _check_cloud(session: orm.Session, request: objects.SessionRequest) -> str:
    """Refuse a host of another cloud; return the UUID of this one."""
    cloud = caller_key_db.cloud(session)
    if request.cloud not in ('', cloud):
        raise exception.Conflict(
            kind='host', name=request.host,
            reason=f'it belongs to cloud {request.cloud}, and the database of '
                   f'gpgpu-conductor is that of cloud {cloud}. If the host '
                   f'came from there, move its file in [gpgpu] state_path '
                   f'away; if this database replaces one that was lost, run '
                   f'"gpgpu-manage db restored --cloud {request.cloud}"; '
                   f'else correct [database] connection')
    return cloud


def _insert_host(session: orm.Session,
                 request: objects.SessionRequest) -> models.Host:
    other = host_db.by_node_uuid(session, request.node_uuid)
    if other is not None:
        raise exception.Conflict(
            kind='host', name=request.host,
            reason=f'node {request.node_uuid} is reported by host '
                   f'{other.name} already')
    host = models.Host(
        name=request.host, node=request.node, node_uuid=request.node_uuid,
        generation=1 + host_db.last_generation(
            session, request.host, request.node_uuid),
        session=0, session_began_at=clock.utc(session),
        plugin_version=_version(request), deleted=0, problems='[]',
        machine='{}', restored=False,
        # No machine speaks for it yet.
        heard_at=0, draining=host_db.was_draining(session, request.host))
    session.add(host)
    session.flush()
    return host


def _version(request: objects.SessionRequest) -> str:
    return request.version[:_LONGEST_VERSION]


def _check_node(session: orm.Session, host: models.Host,
                request: objects.SessionRequest) -> None:
    if host.node_uuid != request.node_uuid:
        raise exception.Conflict(
            kind='host', name=host.name,
            reason=f'it reported node {host.node_uuid} before and '
                   f'{request.node_uuid} now; delete the host if it was '
                   f'set up anew')


def _knows_less(host: models.Host, request: objects.SessionRequest) -> bool:
    return (request.expected > host.session
            or request.generation > host.generation)


def _check_machine(host: models.Host, request: objects.SessionRequest,
                   timeout: float) -> None:
    """Refuse another machine while the present one may be alive.

    :raises Fenced: naming what differs and what to do
    """
    if host.takeover:
        return
    silent = host_db.silence(host)
    if silent > timeout:
        return
    difference = (
        'this start of nova-compute had a session and a newer one took its '
        'place' if request.superseded
        else machine.difference(_machine(host), request.identity))
    if difference is not None:
        raise exception.Fenced(
            host=host.name,
            reason=f'{difference}. Session {host.session} was heard '
                   f'{silent:.0f} s ago. If the other nova-compute is gone, '
                   f'wait {timeout - silent:.0f} s or run "gpgpu-manage host '
                   f'takeover {host.name}"; if it runs, stop the wrong one')


def forget_gpu(host: models.Host, stable_id: str) -> None:
    """Let another GPU at a place of the (locked) host be no other machine."""
    known = _machine(host)
    host.machine = json.dumps(codec.to_primitive(dataclasses.replace(
        known, gpus={place: number for place, number in known.gpus.items()
                     if place != stable_id})))


def _machine(host: models.Host) -> machine.MachineIdentity:
    return codec.from_primitive(
        machine.MachineIdentity, json.loads(host.machine))


def _accept(session: orm.Session, host: models.Host,
            request: objects.SessionRequest, restored: bool) -> None:
    host.session = max(host.session, request.expected) + 1
    before = host.generation
    # What the host or a scheduler once had must never be newer.
    host.generation = max(host.generation, request.generation)
    if host.start_uuid != request.start_uuid:
        host.session_began_at = clock.utc(session)
    host.start_uuid = request.start_uuid
    host.plugin_version = _version(request)
    if not machine.is_same_boot(_machine(host), request.identity):
        # While it was off, its cards may have been elsewhere: the same
        # report is news (conductor.sightings).
        host.report_digest = None
    host.machine = json.dumps(codec.to_primitive(request.identity))
    host_db.hear(host)
    host.takeover = False
    host.restored = restored
    host.report_number = host.comparison_number = 0
    host_db.changed(host)
    if host.report_generation == before:
        # A new session alone does not change what a report would.
        host.report_generation = host.generation
    event_db.add(session, 'session', host.name,
                 detail=f'{host.session}, start {request.start_uuid}')
    if restored:
        LOG.warning(
            'nova-compute of %s knows session %s and generation %s, which '
            'the database does not: it was restored from a backup, or the '
            'host was deleted. The host reports what it has, and its free '
            'devices are cleaned', host.name, request.expected,
            request.generation)
        event_db.add(session, 'restored', host.name)


def _view(host: models.Host, cloud: str) -> objects.Session:
    return objects.Session(
        number=host.session, generation=host.generation,
        restored=host.restored, cloud=cloud)


def check(host: models.Host | None, origin: objects.Origin | None, *,
          reported: bool = True, hear: bool = True) -> None:
    """Refuse a call as refuse() does, and note that the host called.

    :param hear: False where nothing is locked
    """
    refuse(host, origin, reported=reported)
    if (hear and host is not None and origin is not None
            and host_db.silence(host) >= _HEARD_PRECISION):
        host_db.hear(host)


class _Host(typing.Protocol):
    """A row of ``hosts``, as far as it says who speaks for the host."""

    @property
    def name(self) -> str: ...

    @property
    def session(self) -> int: ...

    @property
    def start_uuid(self) -> str | None: ...

    @property
    def generation(self) -> int: ...

    @property
    def report_number(self) -> int: ...


def refuse(host: _Host | None, origin: objects.Origin | None, *,
           reported: bool = True) -> None:
    """Refuse a call of whoever must not speak for the host.

    :param origin: None: the conductor itself, or an operator
    :param reported: the session must have reported the host's devices
    :raises NotOwner: another host calls
    :raises Fenced: another session speaks for the host
    :raises SessionLost: the database knows less than the host
    :raises Conflict: the session has not reported yet
    """
    if origin is None:
        return
    if host is not None and origin.host != host.name:
        raise not_owner(origin, f'a change of host {host.name}')
    if host is None:
        raise _lost(origin, 'it does not know the host')
    if host.start_uuid is None:
        raise _lost(origin, 'it was restored from a backup')
    if origin.session > host.session:
        raise _lost(origin, f'its newest one is {host.session}')
    if (origin.session < host.session
            or origin.start_uuid != host.start_uuid):
        raise exception.Fenced(
            host=host.name,
            reason=f'session {origin.session} was replaced by session '
                   f'{host.session}')
    if origin.generation > host.generation:
        raise _lost(origin, f'the host has seen generation '
                            f'{origin.generation}, the database has '
                            f'{host.generation}')
    if reported and not host.report_number:
        raise exception.Conflict(
            kind='host', name=host.name,
            reason=f'session {host.session} has not reported its devices yet')


def not_owner(origin: objects.Origin, change: str) -> exception.NotOwner:
    """Return the error of a call that changes what is not its host's.

    :param change: what it asks for, such as ``a change of host h2``
    """
    return exception.NotOwner(change=change, host=origin.host)


def _lost(origin: objects.Origin, reason: str) -> exception.SessionLost:
    return exception.SessionLost(
        host=origin.host, session=origin.session, reason=reason)


def digest(db: api.Database, origin: objects.Origin) -> int:
    """Return the digest of a host (Conductor.digest).

    The host's row is not locked: a claim that waits must not make the host
    wait as well.
    """
    def work(session: orm.Session) -> int:
        host = host_db.find(session, origin.host)
        check(host, origin, hear=False)
        assert host is not None
        host_db.heard(session, host.id)
        active = assignment_db.of_hosts(session, [host.id])
        return objects.digest(host.generation, (
            (row.uuid, row.instance_uuid, row.role, row.migration_uuid)
            for row, *_ in active))
    return db.write(work)


def allow_takeover(db: api.Database, name: str) -> None:
    """Allow the next start, whichever machine it is on.

    :raises NotFound: the host never reported
    """
    def work(session: orm.Session) -> None:
        host = host_db.lock(session, name)
        if host is None:
            raise exception.NotFound(kind='host', name=name)
        host.takeover = True
        event_db.add(session, 'takeover', host.name)
    db.write(work)


def renew(host: models.Host) -> None:
    """Have a (locked) host begin a new session and report what it has.

    Until then nothing on it can be claimed.
    """
    host.start_uuid, host.report_number = None, 0


def mark_restored(db: api.Database) -> list[str]:
    """Have every host begin a new session and report what it has.

    Until then nothing on it can be claimed.

    :returns: names of the hosts
    """
    def work(session: orm.Session) -> list[str]:
        hosts = host_db.lock_all(session)
        for host in hosts:
            renew(host)
            host.restored = True
            # A copy on another machine must not be the first to call.
            host_db.hear(host)
            host_db.changed(host)
            event_db.add(session, 'restored', host.name)
        return [host.name for host in hosts]
    return db.write(work)
