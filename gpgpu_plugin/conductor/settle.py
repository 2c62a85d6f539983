# SPDX-License-Identifier: Apache-2.0
"""The end of a transaction: what became of the rows of a locked host.

``settle`` is the only writer of the rows of a host that exists. What makes a
host, deletes it or marks all of them after a restore (sessions, admin.host),
ended assignments of its book (restore_recovery), when it called, and its last
report have writers of their own. So have events of what changes no row of the
host: where it is in the aggregate (isolation), and usage (drift).
No rule needs to ask whether a device must be cleaned after what the rule did:
that is asked here. From the difference of the rows follow the capacities of
types, the generation of the host, what is published and the beginning and end
of usage; events and records of the ledger come with the rows.
"""

from __future__ import annotations

import dataclasses
import datetime
import types
import typing
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import ledger
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import notification as notification_db
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as objects


class Ending(typing.NamedTuple):
    """When and by whose word assignments end.

    ``at``: None: now. ``alive_since``: see usage.end. ``ages``: seconds from
    the end of their usage until ``at``, by UUID; default 0.
    """

    at: datetime.datetime | None = None
    alive_since: datetime.datetime | None = None
    ages: Mapping[str, int] = types.MappingProxyType({})


NOW = Ending()
"""Assignments end now; nothing else is known of their end."""


def change(session: orm.Session, host: host_db.HostRow,
           rule: Callable[[host_rows.HostRows], host_rows.HostRows],
           ) -> objects.HostInventory:
    """Load the rows of a (locked) host, apply a rule to them, and settle."""
    before = host_rows.load_one(session, host)
    return settle(session, before, rule(
        variant_matching.up_to_date(session, before)))


def settle(session: orm.Session, before: host_rows.HostRows,
           after: host_rows.HostRows,
           ending: Ending = NOW) -> objects.HostInventory:
    """Store how the rows of a (locked) host changed, and what follows.

    :param ending: when and by whose word assignments end
    :returns: what the host offers after the transaction
    :raises Conflict: another writer changed a device since it was read
    """
    after = holds.clean_again(after)
    groups = capacity.groups(after)
    for verdict in after.verdicts:
        ledger.add(session, after.host.name, verdict.device, verdict.verdict,
                   reason=verdict.reason, actor=verdict.actor)
    after = capacity.with_capacities(after, groups)
    if _is_news(before, after):
        after = after.change_host(generation=after.host.generation + 1,
                                  changed_at=clock.epoch(session))
    stored = host_rows.store(session, before, after, ending.at)
    notification_db.devices_seen(session, [
        now for id, now in stored.by_id.items() if id in before.by_id
        and before.by_id[id].present != now.present])
    notification_db.devices_changed(
        session, host_rows.changed(before, stored))
    _begin_usage(session, before, stored, ending.at)
    _end_usage(session, host_rows.ended(before, stored), ending)
    event_db.add_all(session, stored.host.name, after.events)
    return capacity.inventory(stored.host, groups)


_PUBLISHED_OF_HOST = ('node', 'problems', 'session')
"""Columns of a host whose change hosts and schedulers must learn."""


def _begin_usage(session: orm.Session, before: host_rows.HostRows,
                 after: host_rows.HostRows,
                 at: datetime.datetime | None) -> None:
    """Record that guests begin to use the devices of claims.

    The usage of a migration's destination begins with its confirmation.

    :param at: None: now
    """
    waited = {row.uuid for row in before.assignments if not _is_used(row)}
    used = [row.uuid for row in after.assignments
            if row.uuid in waited and _is_used(row)]
    if used:
        usage_db.begin(session, used, at or clock.utc(session))


def _end_usage(session: orm.Session, rows: Sequence[host_rows.Assignment],
               ending: Ending) -> None:
    """Record that guests do not use the devices of assignments any more.

    That is one statement, unless they used them until different times.
    """
    used: dict[int, list[str]] = {}
    for row in filter(_is_used, rows):
        used.setdefault(ending.ages.get(row.uuid, 0), []).append(row.uuid)
    for age, uuids in used.items():
        usage_db.end(session, uuids, (
            ending.at or clock.utc(session)) - datetime.timedelta(
                seconds=age), ending.alive_since)


def _is_used(row: host_rows.Assignment) -> bool:
    return claim_obj.is_used(row.role, row.lease_expires_at)


def _is_news(before: host_rows.HostRows,
             after: host_rows.HostRows) -> bool:
    """Return whether hosts and schedulers must learn of a change."""
    return (
        any(getattr(before.host, name) != getattr(after.host, name)
            for name in _PUBLISHED_OF_HOST)
        or any(group.variant_version > before.host.variants_version
               for group in before.bare_groups)
        or (before.by_id is not after.by_id and _are_news(
            before.devices, after.devices))
        or _are_others(before.assignments, after.assignments)
        or list(before.holds) != list(after.holds)
        or (before.bare_groups is not after.bare_groups and [
            _bare(group) for group in before.bare_groups] != [
                _bare(group) for group in after.bare_groups]))


def _are_others(before: Sequence[host_rows.Assignment],
                after: Sequence[host_rows.Assignment]) -> bool:
    """Return whether assignments differ, but for what their devices are."""
    return len(before) != len(after) or any(
        old is not now and dataclasses.replace(
            old, device=now.device) != now
        for old, now in zip(before, after, strict=True))


def _are_news(before: Sequence[device_db.DeviceRow],
              after: Sequence[device_db.DeviceRow]) -> bool:
    return len(before) != len(after) or any(
        old is not now and _published(old) != _published(now)
        for old, now in zip(before, after, strict=True))


def _published(device: device_db.DeviceRow) -> tuple[object, ...]:
    """Return what others know of a device.

    When its driver was read, and numbers behind its health, are no news.
    """
    return (dataclasses.replace(
        device, driver_capacity=None, errors=None, health_reason=None),
        device_db.driver_capacity(device))


def _bare(group: host_rows.GroupRows) -> host_rows.GroupRows:
    """Return a group without ids and capacities, which follow from others.

    Whose policy it has is not published.
    """
    return dataclasses.replace(group, id=0, own_policy=False, types=[
        dataclasses.replace(row, id=0, max_vgpu_per_pgpu=0, max_capacity=0,
                            remaining_capacity=0) for row in group.types])
