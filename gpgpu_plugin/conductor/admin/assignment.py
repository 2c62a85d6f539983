# SPDX-License-Identifier: Apache-2.0
"""Assignments as operators list and end them.

Only the host of an assignment can determine whether it is used: it asks Nova
and the hypervisor.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.objects import admin as objects
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import compute_api

LOG = logging.getLogger(__name__)

Ask = Callable[[Iterable[claim_obj.Assignment]],
               Mapping[str, Sequence[claim_obj.Usage]]]
"""Function that asks hosts which assignments are used (HostQuery.usages)."""

_Listed = tuple[datetime.datetime, claim_obj.Assignment]
"""An assignment, and when it was claimed."""


def list_all(db: api.Database, ask: Ask, host: str | None = None,
             instance: str | None = None, limit: int = objects.PAGE_SIZE,
             marker: str | None = None,
             ) -> tuple[objects.AssignmentInfo, ...]:
    """Return a page of active assignments (Conductor.assignment_list)."""
    return _infos(_listed(
        db, host, instance, pages.size(limit), marker), ask)


def end(db: api.Database, ask: Ask, uuids: Sequence[str], *, force: bool,
        actor: str) -> tuple[objects.AssignmentInfo, ...]:
    """End assignments (Conductor.assignment_end)."""
    infos = tuple(info for info in _infos(_beside(db, uuids), ask)
                  if info.uuid in uuids)
    missing = set(uuids) - {info.uuid for info in infos}
    if missing:
        raise exception.NotFound(
            kind='active assignment', name=', '.join(sorted(missing)))
    for info in infos:
        if not force:
            _check_unused(info)
    judged = '; '.join(dict.fromkeys(
        f'used: {info.used}, {info.reason}' for info in infos))
    releases.end(db, uuids, f'by {actor}{" with --force" if force else ""}; '
                            f'{judged}')
    return infos


def _listed(db: api.Database, host: str | None = None,
            instance: str | None = None, limit: int | None = None,
            marker: str | None = None) -> list[_Listed]:
    """Return active assignments.

    :raises NotFound: no such host or marker
    """
    with db.reader() as session:
        if host is not None:
            host_db.get(session, host)
        return [(active.row.claimed_at, claims.view(active)) for active
                in assignment_db.listed(
                    session, host, instance, limit, marker)]


def _beside(db: api.Database, uuids: Sequence[str]) -> list[_Listed]:
    """Return all assignments of the same instances on the same host.

    The host must see all of them to determine whether one is used.

    :param uuids: UUIDs of assignments of one host
    """
    host_id = releases.host_id_of(db, uuids)
    if host_id is None:
        return []
    with db.reader() as session:
        [host] = host_db.by_ids(session, [host_id])
    found = _listed(db, host.name)
    instances = {assignment.instance_uuid for _, assignment in found
                 if assignment.uuid in uuids}
    return [(since, assignment) for since, assignment in found
            if assignment.instance_uuid in instances]


def _check_unused(info: objects.AssignmentInfo) -> None:
    """Refuse to end an assignment that a guest has or may have.

    :raises Conflict: it is used, or that is unknown
    """
    if info.used == 'yes':
        raise exception.Conflict(
            kind='assignment', name=info.uuid,
            reason=f'device {info.address} of {info.host} is in use: '
                   f'{info.reason}. Delete, shelve or move the instance, or '
                   f'reset its state and hard reboot it. With --force the '
                   f'assignment ends although the instance uses the device; '
                   f'stop the guest first')
    if info.used == 'unknown':
        raise exception.Conflict(
            kind='assignment', name=info.uuid,
            reason=f'it is unknown whether device {info.address} of '
                   f'{info.host} is in use: {info.reason}. Check nova-compute '
                   f'there, Nova\'s database and the hypervisor, then repeat '
                   f'the command. If the host is lost for good, or the guest '
                   f'is stopped, use --force')


def _infos(found: Sequence[_Listed],
           ask: Ask) -> tuple[objects.AssignmentInfo, ...]:
    usage = _judge([assignment for _, assignment in found], ask)
    return tuple(_info(since, assignment, usage[assignment.uuid])
                 for since, assignment in found)


def _info(since: datetime.datetime, assignment: claim_obj.Assignment,
          usage: claim_obj.Usage) -> objects.AssignmentInfo:
    return objects.AssignmentInfo(
        uuid=assignment.uuid, instance_uuid=assignment.instance_uuid,
        host=assignment.host, address=assignment.address,
        device_uuid=assignment.device_uuid, stable_id=assignment.stable_id,
        variant=assignment.variant, vgpu_type=assignment.vgpu_type,
        role=assignment.role, state=assignment.state,
        migration_uuid=assignment.migration_uuid,
        since=since.isoformat(timespec='seconds') + 'Z',
        used={True: 'yes', False: 'no', None: 'unknown'}[usage.used],
        reason=usage.reason)


def _judge(assignments: Sequence[claim_obj.Assignment],
           ask: Ask) -> Mapping[str, claim_obj.Usage]:
    """Return what the host of each assignment says about it, by UUID."""
    answers: Mapping[str, Sequence[claim_obj.Usage]] = {}
    reason = f'did not answer within {compute_api.USAGE_TIMEOUT} s'
    try:
        answers = ask(assignments)
    except exception.BrokerUnavailable as exc:
        LOG.info('Cannot determine which assignments are used: %s', exc)
        reason = 'could not be asked; see the log of gpgpu-conductor'
    # A host that names assignments of another one is not asked about them.
    known = {(host, usage.uuid): usage
             for host, usages in answers.items() for usage in usages}
    return {
        assignment.uuid: known.get((assignment.host, assignment.uuid))
        or claim_obj.Usage(
            uuid=assignment.uuid, used=None,
            reason=f'nova-compute on {assignment.host} {reason}')
        for assignment in assignments}
