# SPDX-License-Identifier: Apache-2.0
"""Hosts, as operators see and delete them."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import sighting as sighting_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.objects import admin as objects

LOG = logging.getLogger(__name__)

_MAX_NAMED = 8
"""Number of devices that a refusal names."""

_SAMPLES = 20
"""Devices of a variant whose last cleanings tell how long others take."""


def list_all(db: api.Database, limit: int = objects.PAGE_SIZE,
             marker: str | None = None, *,
             silent_after: float | None = None,
             ) -> tuple[objects.HostInfo, ...]:
    """Return a page of hosts (Conductor.host_list).

    :param silent_after: see HostStates
    """
    with db.reader() as session:
        if marker is not None:
            host_db.get(session, marker)
        return _infos(session, host_db.listed(
            session, pages.size(limit), marker), silent_after)


def show(db: api.Database, name: str, *,
         silent_after: float | None = None) -> objects.HostInfo:
    """Return one host.

    :raises NotFound: it never reported
    """
    with db.reader() as session:
        return _infos(
            session, [host_db.get(session, name)], silent_after)[0]


def _infos(session: orm.Session, hosts: Sequence[host_db.HostRow],
           silent_after: float | None = None,
           ) -> tuple[objects.HostInfo, ...]:
    ids = [host.id for host in hosts]
    counts = device_db.count_by_state(session, ids)
    states = HostStates(session, silent_after)
    cleaned = _first_cleanings(session, ids)
    holds = hold_db.of_hosts(session, ids)
    return tuple(dataclasses.replace(
        _info(host, counts.get(host.id, {}), holds.get(host.id, ())),
        host_state=states.of(host.name),
        cleaned=cleaned.get(host.id))
        for host in hosts)


def _first_cleanings(session: orm.Session,
                     host_ids: Sequence[int]) -> dict[int, str]:
    """Return how far hosts are with new devices, by id, if they have some."""
    by_host = collections.defaultdict[int, list[device_db.NewDevices]](list)
    for counts in device_db.count_new(session, host_ids):
        by_host[counts.host_id].append(counts)
    seconds = {
        variant_id: ledger.seconds_of_last(
            session, device_db.cleaned_of_variant(
                session, variant_id, _SAMPLES)).values()
        for variant_id in {counts.variant_id for found in by_host.values()
                           for counts in found}}
    return {
        host_id: device_rules.FirstCleanings(**{
            field.name: sum(getattr(counts, field.name) for counts in found)
            for field in dataclasses.fields(device_rules.FirstCleanings)
        }).text([took for counts in found
                 for took in seconds[counts.variant_id]])
        for host_id, found in by_host.items()}


def _info(host: host_db.HostRow, states: Mapping[str, int],
          holds: Sequence[hold_db.Hold]) -> objects.HostInfo:
    return objects.HostInfo(
        host=host.name, node=host.node, node_uuid=host.node_uuid,
        generation=host.generation, devices=dict(states),
        reported_at=(host.reported_at.isoformat(timespec='seconds') + 'Z'
                     if host.reported_at else None),
        problems=tuple(json.loads(host.problems)), session=host.session,
        heard_at=host_rules.utc(host.heard_at),
        holds=tuple(map(hold_db.described, holds)),
        draining=any(found.kind == device_rules.HostHoldKind.DRAINING
                     for found in holds),
        version=host.plugin_version)


def drain(db: api.Database, name: str, actor: str, *, draining: bool,
          reason: str | None = None) -> objects.HostInfo:
    """Withdraw a host's devices, or offer them again (Conductor.host_drain).

    :param actor: operator who does it
    :raises NotFound: the host never reported
    """
    if reason is not None:
        withdrawal.check_reason(reason)

    def rule(rows: host_rows.HostRows) -> host_rows.HostRows:
        held = rows.hold_host(device_rules.HostHoldKind.DRAINING,
                              held=draining, reason=reason, actor=actor)
        return rows if held is rows else held.note_host(
            'drain' if draining else 'undrain', reason)

    def work(session: orm.Session) -> objects.HostInfo:
        settle.change(session, host_db.lock_known(session, name), rule)
        return _infos(session, [host_db.get(session, name)])[0]
    return db.write(work)


def check_not_running(db: api.Database, name: str,
                      answers: Callable[[], bool]) -> None:
    """Refuse to delete a host whose nova-compute is or may be running.

    :param answers: asks nova-compute whether it is running; raises if that is
        unknown
    :raises NotFound: the host never reported
    :raises Conflict: nova-compute answered, or it could not be asked
    """
    with db.reader() as session:
        host_db.get(session, name)
    try:
        running = answers()
    except Exception as exc:
        # Whatever it is, it is no proof that nova-compute ended.
        LOG.exception('Cannot check whether nova-compute on %s is running',
                      name)
        raise exception.Conflict(
            kind='host', name=name,
            reason=f'cannot check whether its nova-compute is running '
                   f'({type(exc).__name__}: {str(exc).partition(chr(10))[0]})'
                   f'; try again, or use --force to delete the host anyway',
        ) from exc
    if running:
        raise exception.Conflict(
            kind='host', name=name,
            reason='its nova-compute is running; stop nova-compute there and '
                   'delete the host again, or use --force to delete it now '
                   'and have it report its devices again')


def delete(db: api.Database, name: str, *, force: bool = False) -> None:
    """Delete a host (ConductorAPI.host_delete)."""
    def work(session: orm.Session) -> None:
        host = host_db.lock_known(session, name)
        rows = host_rows.load_one(session, host)
        if rows.assignments:
            raise exception.Conflict(
                kind='host', name=name,
                reason=f'instance {rows.assignments[0].instance_uuid} has a '
                       f'device of this host; delete or migrate its server, '
                       f'or end the assignment with "gpgpu-manage assignment '
                       f'end"')
        if not force:
            _check_clean(rows)
        assignment_db.delete_of_host(session, host.id)
        sighting_db.delete_of_host(session, host.id)
        device_db.delete_of_host(session, host.id)
        group_db.delete(session, [group.id for group in rows.bare_groups])
        event_db.add(session, 'host_delete', host.name)
        # A tombstone: schedulers see the deletion as they see any change.
        host_db.store(session, host, dataclasses.replace(
            host_db.changed(session, host), deleted=host.id))
    db.write(work)


def _check_clean(rows: host_rows.HostRows) -> None:
    """Refuse to forget why devices of a host are not offered.

    If the host reports again, its devices are new ones, which are cleaned.

    :raises Conflict: one is quarantined, disabled or retired, or a GPU was
        used and is not clean, or nobody knows
    """
    if rows.is_held(device_rules.HostHoldKind.RESTORED):
        raise exception.Conflict(
            kind='host', name=rows.host.name,
            reason='the database was restored from a backup, and the host has '
                   'not reported since: nobody knows who used its GPUs. Wait '
                   'until "gpgpu-manage host list" does not show it as '
                   'restored, or start its nova-compute. Or use --force if '
                   'the GPUs are gone')
    kept = [f'{device.address} ({device.uuid}) is {reason}'
            for device in rows.devices
            if (reason := _kept_reason(device)) is not None]
    if not kept:
        return
    named = kept[:_MAX_NAMED]
    if len(kept) > _MAX_NAMED:
        named.append(f'{len(kept) - _MAX_NAMED} more would be offered')
    raise exception.Conflict(
        kind='host', name=rows.host.name,
        reason=f'{"; ".join(named)}. If the host reports again, they are '
               f'cleaned and offered. Repair and release those that are '
               f'quarantined ("gpgpu-manage device release"), and remove '
               f'retired cards. Or use --force if the GPUs are gone, or if '
               f'they may be offered')


def _kept_reason(device: host_rows.Device) -> str | None:
    """Return why a device is not offered that a scan would find again."""
    withdrawn = device_rules.shown_as(device.holds)
    if withdrawn == device_rules.RETIRED:
        return withdrawn if (
            device.present and device.parent_id is None) else None
    if withdrawn is not None:
        return withdrawn
    # It may return with VFs, and nobody would know of its use.
    if (device.parent_id is None
            and device.state in device_rules.UNCLEAN_STATES
            and device.cleaned_steps is not None):
        return device.state
    return device_rules.DISABLED if device.holds else None


# -- State of hosts, as lists show it.


class HostStates:
    """States of hosts at one time.

    :param silent_after: seconds without a call after which a host is silent;
        None: the states are not known
    """

    def __init__(self, session: orm.Session,
                 silent_after: float | None) -> None:
        self._closed = None if silent_after is None else host_db.closed(
            session, clock.epoch(session) - silent_after)

    def of(self, host: str) -> host_rules.HostState | None:
        """Return the state of a host."""
        if self._closed is None:
            return None
        return (self._closed[host].state if host in self._closed
                else host_rules.HostState.UP)

    def is_closed(self, host: str) -> bool:
        """Return whether it is silent, restored or disabled.

        Nothing can be claimed on it then. That it is to be drained is another
        reason, which has a remedy of its own.
        """
        return self.of(host) in (
            host_rules.HostState.SILENT, host_rules.HostState.RESTORED,
            host_rules.HostState.DISABLED)
