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
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import device
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import report

LOG = logging.getLogger(__name__)

_RESTORED = device.HostHoldKind.RESTORED

_HEARD_PRECISION = 60
"""Seconds; ``heard_at`` is not written more often by calls that change
nothing else."""


_MAX_VERSION = 64
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


def begin(db: api.Database, request: report.SessionRequest,
          timeout: float, key_number: int | None = None) -> report.Session:
    """Begin a session (Conductor.begin_session).

    :param timeout: seconds of silence after which another machine may speak
        for the host
    :param key_number: of the key that signed the call; None: it is not signed
    """
    def work(session: orm.Session) -> report.Session:
        host = host_db.lock(session, request.host)
        if host is None:
            raise _HostUnknown
        return _begin(session, host, request, timeout, key_number)

    def first(session: orm.Session) -> report.Session:
        host = (host_db.lock(session, request.host)
                or _insert_host(session, request))
        return _begin(session, host, request, timeout, key_number)
    try:
        return db.write(work)
    except _HostUnknown:
        # In a transaction of its own: MariaDB locks a host also where there
        # is none yet.
        return db.write(first)


def _begin(session: orm.Session, host: host_db.HostRow,
           request: report.SessionRequest,
           timeout: float, key_number: int | None) -> report.Session:
    cloud = _check_cloud(session, request)
    _check_node(host, request)
    before = host_rows.load_one(session, host)
    restored = (before.is_held(_RESTORED) or request.doubted
                or _knows_less(host, request))
    if host.start_uuid == request.start_uuid and not restored:
        # The answer to the same request was lost.
        if host.key_number != key_number:
            settle.settle(session, before,
                          before.change_host(key_number=key_number))
        return _view(host.session, host.generation, cloud, restored=False)
    if request.expected < host.session:
        raise exception.SessionOutdated(
            host=host.name, expected=request.expected,
            current=host.session)
    _check_machine(session, host, request, timeout)
    after = _accepted(
        session, before.change_host(key_number=key_number), request,
        restored=restored)
    after = after.note_host(
        'session', f'{after.host.session}, start {request.start_uuid}')
    if restored:
        LOG.warning(
            'nova-compute of %s knows session %s and generation %s, which '
            'the database does not: it was restored from a backup, or the '
            'host was deleted. The host reports what it has, and its free '
            'devices are cleaned', host.name, request.expected,
            request.generation)
        after = after.note_host('restored')
    offered = settle.settle(session, before, after)
    return _view(after.host.session, offered.generation, cloud,
                 restored=restored)


def _check_cloud(session: orm.Session, request: report.SessionRequest) -> str:
    """Refuse a host of another cloud; return the UUID of this one."""
    cloud = caller_key_db.cloud(session)
    if request.cloud not in ('', cloud):
        raise exception.Conflict(
            kind='host', name=request.host,
            reason=f'it belongs to cloud {request.cloud}, and the database of '
                   f'gpgpu-conductor is that of cloud {cloud}. If the host '
                   f'came from there, move its file in [gpgpu_compute] '
                   f'state_path away; if this database replaces one that was '
                   f'lost, run "gpgpu-manage db restored --cloud '
                   f'{request.cloud}"; else correct [database] connection')
    return cloud


def _insert_host(session: orm.Session,
                 request: report.SessionRequest) -> host_db.HostRow:
    other = host_db.by_node_uuids(
        session, [request.node_uuid]).get(request.node_uuid)
    if other is not None:
        raise exception.Conflict(
            kind='host', name=request.host,
            reason=f'node {request.node_uuid} is reported by host '
                   f'{other.name} already')
    deleted = host_db.last_deleted(session, request.host)
    host = host_db.insert(session, host_db.HostRow(
        id=0, name=request.host, node=request.node,
        node_uuid=request.node_uuid,
        generation=1 + host_db.last_generation(
            session, request.host, request.node_uuid),
        changed_at=clock.epoch(session), deleted=0, problems='[]',
        reported_at=None, session=0, session_began_at=clock.utc(session),
        variants_version=0, plugin_version=_version(request),
        start_uuid=None, key_number=None, machine='{}',
        # No machine speaks for it yet.
        heard_at=0, takeover=False, report_number=0, comparison_number=0,
        report_digest=None, report_generation=0))
    if deleted is not None:
        hold_db.inherit(session, host.id, deleted)
    return host


def _version(request: report.SessionRequest) -> str:
    return request.version[:_MAX_VERSION]


def _check_node(host: host_db.HostRow,
                request: report.SessionRequest) -> None:
    if host.node_uuid != request.node_uuid:
        raise exception.Conflict(
            kind='host', name=host.name,
            reason=f'it reported node {host.node_uuid} before and '
                   f'{request.node_uuid} now; delete the host if it was '
                   f'set up anew')


def _knows_less(host: host_db.HostRow,
                request: report.SessionRequest) -> bool:
    return (request.expected > host.session
            or request.generation > host.generation)


def _check_machine(session: orm.Session, host: host_db.HostRow,
                   request: report.SessionRequest, timeout: float) -> None:
    """Refuse another machine while the present one may be alive.

    :raises Fenced: naming what differs and what to do
    """
    if host.takeover:
        return
    silent = host_db.silence(session, host)
    if silent > timeout:
        return
    difference = (
        'this start of nova-compute had a session and a newer one took its '
        'place' if request.superseded
        else host_rules.machine_difference(_machine(host), request.identity))
    if difference is not None:
        raise exception.Fenced(
            host=host.name,
            reason=f'{difference}. Session {host.session} was heard '
                   f'{silent:.0f} s ago. If the other nova-compute is gone, '
                   f'wait {timeout - silent:.0f} s or run "gpgpu-manage host '
                   f'takeover {host.name}"; if it runs, stop the wrong one')


def without_gpu(rows: host_rows.HostRows,
                stable_id: str) -> host_rows.HostRows:
    """Let another GPU at a place of a host be no other machine."""
    known = _machine(rows.host)
    return rows.change_host(machine=json.dumps(codec.to_primitive(
        dataclasses.replace(known, gpus={
            place: number for place, number in known.gpus.items()
            if place != stable_id}))))


def _machine(host: host_db.HostRow) -> host_rules.MachineIdentity:
    return codec.from_primitive(
        host_rules.MachineIdentity, json.loads(host.machine))


def _accepted(session: orm.Session, rows: host_rows.HostRows,
              request: report.SessionRequest, *,
              restored: bool) -> host_rows.HostRows:
    """Return the rows of a host for which a new session speaks."""
    host = rows.host
    # What the host or a scheduler once had must never be newer.
    generation = max(host.generation, request.generation)
    return rows.change_host(
        session=max(host.session, request.expected) + 1,
        generation=generation, start_uuid=request.start_uuid,
        session_began_at=host.session_began_at
        if host.start_uuid == request.start_uuid else clock.utc(session),
        plugin_version=_version(request),
        machine=json.dumps(codec.to_primitive(request.identity)),
        heard_at=clock.epoch(session), takeover=False,
        report_number=0, comparison_number=0,
        # While it was off, its cards may have been elsewhere: the same
        # report is news (conductor.card_identity).
        report_digest=host.report_digest if not restored
        and host_rules.is_same_boot(_machine(host), request.identity)
        else None,
        # A new session alone does not change what a report would: settle
        # gives the host this generation.
        report_generation=generation + 1
        if host.report_generation == host.generation
        else host.report_generation,
    ).hold_host(_RESTORED, held=restored)


def _view(number: int, generation: int, cloud: str, *,
          restored: bool) -> report.Session:
    return report.Session(number=number, generation=generation,
                          restored=restored, cloud=cloud)


def check(session: orm.Session, host: host_db.HostRow | None,
          origin: report.Origin | None, *, reported: bool = True) -> None:
    """Refuse a call as refuse() does, and note that the (locked) host called.
    """
    refuse(host, origin, reported=reported)
    if (host is not None and origin is not None
            and host_db.silence(session, host) >= _HEARD_PRECISION):
        host_db.hear(session, host)


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


def refuse(host: _Host | None, origin: report.Origin | None, *,
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


def not_owner(origin: report.Origin, change: str) -> exception.NotOwner:
    """Return the error of a call that changes what is not its host's.

    :param change: what it asks for, such as ``a change of host h2``
    """
    return exception.NotOwner(change=change, host=origin.host)


def _lost(origin: report.Origin, reason: str) -> exception.SessionLost:
    return exception.SessionLost(
        host=origin.host, session=origin.session, reason=reason)


def digest(db: api.Database, origin: report.Origin) -> int:
    """Return the digest of a host (Conductor.digest).

    The host's row is not locked: a claim that waits must not make the host
    wait as well.
    """
    def work(session: orm.Session) -> int:
        host = host_db.find(session, origin.host)
        refuse(host, origin)
        assert host is not None
        host_db.hear_if_free(session, host.id)
        active = assignment_db.of_hosts(session, [host.id])
        return report.digest(host.generation, (
            (row.uuid, row.instance_uuid, row.role, row.migration_uuid)
            for row, *_ in active))
    return db.write(work)


def allow_takeover(db: api.Database, name: str) -> None:
    """Allow the next start, whichever machine it is on.

    :raises NotFound: the host never reported
    """
    db.write(lambda session: settle.change(
        session, host_db.lock_known(session, name),
        lambda rows: rows.change_host(takeover=True).note_host('takeover')))


def mark_restored(db: api.Database) -> list[str]:
    """Have every host begin a new session and report what it has.

    Until then nothing on it can be claimed.

    :returns: names of the hosts
    """
    def work(session: orm.Session) -> list[str]:
        hosts = host_db.lock_all(session)
        held = set(session.scalars(hold_db.held_hosts(_RESTORED)))
        hold_db.store(session, (), [
            hold_db.of_host(host.id, _RESTORED) for host in hosts
            if host.id not in held], clock.utc(session))
        for host in hosts:
            host_db.store(session, host, dataclasses.replace(
                host_db.changed(session, host), start_uuid=None,
                report_number=0, report_digest=None,
                # A copy on another machine must not be the first to call.
                heard_at=clock.epoch(session)))
            event_db.add(session, 'restored', host.name)
        return [host.name for host in hosts]
    return db.write(work)
