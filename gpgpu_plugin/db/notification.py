# SPDX-License-Identifier: Apache-2.0
"""Notifications of changes, with the facts as of their transactions.

Each function does nothing unless notifications are enabled, so that they cost
nothing where nobody wants them. What it notes becomes a part of the event that
the transaction writes of the same device or assignment (db.event).
"""

from __future__ import annotations

import datetime
import json
import typing
import uuid
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import transaction
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import event as event_rules
from gpgpu_plugin.objects import history

if typing.TYPE_CHECKING:
    from gpgpu_plugin.db import device as device_db

_Type = event_rules.EventType
_Row = Mapping[str, typing.Any]
Notification = tuple[event_rules.EventType, history.Payload]

_PUBLISHER = 'gpgpu_publisher'
_NOTED = 'gpgpu_notifications'

_HOSTS = tables.HOSTS
_GROUPS = tables.GROUPS
_VARIANTS = tables.VARIANTS
_NAMES = (
    sa.select(_HOSTS.c.id, _HOSTS.c.name, _GROUPS.c.id, _VARIANTS.c.name)
    .select_from(_HOSTS
                 .outerjoin(_GROUPS, _GROUPS.c.host_id == _HOSTS.c.id)
                 .outerjoin(_VARIANTS,
                            _GROUPS.c.variant_id == _VARIANTS.c.id))
    .where(_HOSTS.c.id.in_(sa.bindparam('host_ids', expanding=True))))

_MAX_SERIAL = 255


def enable(session: orm.Session, publisher_id: str | None) -> None:
    """Note with a transaction whom its notifications name.

    :param publisher_id: None: it has none
    """
    session.info[_PUBLISHER] = publisher_id


def is_enabled(session: orm.Session) -> bool:
    """Return whether a transaction has notifications."""
    return session.info.get(_PUBLISHER) is not None


def _note(session: orm.Session,
          notifications: Iterable[Notification]) -> None:
    session.info.setdefault(_NOTED, []).extend(notifications)


def take(session: orm.Session) -> list[Notification]:
    """Return what was noted since the last time."""
    noted: list[Notification] = session.info.pop(_NOTED, [])
    return noted


def messages(session: orm.Session, at: datetime.datetime,
             notifications: Iterable[Notification]) -> str | None:
    """Return the JSON of messages as oslo.messaging sends them.

    :param at: when it happened
    :returns: None: nobody is notified
    """
    found = [{
        'message_id': str(uuid.uuid4()),
        'publisher_id': session.info[_PUBLISHER],
        'event_type': str(event_type),
        'priority': str(event_rules.PRIORITIES[event_type]),
        'payload': history.notification_primitive(payload),
        'timestamp': at.strftime('%Y-%m-%d %H:%M:%S.%f'),
    } for event_type, payload in notifications] if is_enabled(
        session) else []
    return json.dumps(found) if found else None


def devices_changed(session: orm.Session, changes: Sequence[
        tuple[device_db.DeviceRow, device_db.DeviceRow]]) -> None:
    """Notify of devices whose state changed, or that were withdrawn.

    :param changes: each device before and after its change; its holds are
        stored
    """
    changed = [(state, now) for before, now in changes
               if (state := _state(before)) != _state(now)]
    if changed and is_enabled(session):
        _note(session, [
            (event_rules.event_type_of_state(state, payload.state), payload)
            for (state, _), payload in zip(changed, _devices(
                session, changed), strict=True)])


def _state(device: device_db.DeviceRow) -> str:
    return device_rules.own_state(device.state, device.holds)


def devices_seen(session: orm.Session,
                 devices: Sequence[device_db.DeviceRow]) -> None:
    """Notify of devices that a scan no longer found, or found again.

    Nobody waits for a retired one.
    """
    found = [(None, device) for device in devices
             if device_rules.HoldKind.RETIRED not in device.holds]
    if found and is_enabled(session):
        _note(session, [(
            _Type.DEVICE_PRESENT if payload.present else _Type.DEVICE_MISSING,
            payload) for payload in _devices(session, found)])


def _names(session: orm.Session, devices: Iterable[device_db.DeviceRow],
           ) -> tuple[dict[int, str], dict[int | None, str]]:
    """Return the names of hosts, and of the variants of groups, by id."""
    hosts: dict[int, str] = {}
    variants: dict[int | None, str] = {}
    for host_id, host, group_id, variant in session.execute(
            _NAMES, {'host_ids': list({
                device.host_id for device in devices})}):
        hosts[host_id] = host
        variants[group_id] = variant
    return hosts, variants


def _devices(session: orm.Session, devices: Sequence[
        tuple[str | None, device_db.DeviceRow]],
        ) -> list[history.DevicePayload]:
    """Return the payloads of devices.

    :param devices: each after the state that it had before
    """
    hosts, variants = _names(session, [device for _, device in devices])
    holds = hold_db.of_rows(session, [
        device for _, device in devices if device.holds])
    return [history.DevicePayload(
        request_id=transaction.author_of(session).request_id, uuid=device.uuid,
        host=hosts[device.host_id], address=device.address,
        stable_id=device.stable_id, kind=device.kind,
        variant=variants.get(device.group_id),
        serial=serial(device.pci_function),
        vgpu_type=device.vgpu_type, old_state=old_state, state=_state(device),
        enabled=device_rules.HoldKind.DISABLED not in device.holds,
        present=device.present, reason=_shortened(
            hold_db.texts(holds.get(device.id, ())) or device.reason),
        generation=device.generation) for old_state, device in devices]


def _shortened(reason: str | None) -> str | None:
    return reason and cleaning.shortened(reason)


def serial(function: str | None) -> str | None:
    """Return the serial number of a function, the beginning of a long one.

    :param function: JSON of the PCI function; None: unknown
    """
    found: str | None = json.loads(function or '{}').get('serial')
    # What a card or a host says may be of any length.
    return found and found[:_MAX_SERIAL]


def usages_began(session: orm.Session, rows: Iterable[_Row]) -> None:
    """Notify of usages that began.

    :param rows: values of ``usages``, by column
    """
    if is_enabled(session):
        _note(session, [
            (_Type.ASSIGNMENT_START, history.AssignmentPayload(
                **_usage(session, row), ended_at=None, seconds=0))
            for row in rows])


def usages_ended(session: orm.Session, rows: Iterable[_Row]) -> None:
    """Notify of usages that ended, as ``usages_began`` does."""
    if is_enabled(session):
        _note(session, [
            (_Type.ASSIGNMENT_END, history.AssignmentPayload(
                **_usage(session, row), ended_at=_text(row['ended_at']),
                seconds=_seconds(row['began_at'], row['ended_at'])))
            for row in rows])


def usages_exist(session: orm.Session, rows: Iterable[_Row],
                 beginning: datetime.datetime,
                 ending: datetime.datetime) -> None:
    """Notify of usages in an audit period, as ``usages_began`` does."""
    if is_enabled(session):
        _note(session, [
            (_Type.ASSIGNMENT_EXISTS, history.AssignmentExistsPayload(
                **_usage(session, row),
                ended_at=row['ended_at'] and _text(row['ended_at']),
                seconds=_seconds(max(row['began_at'], beginning),
                                 min(row['ended_at'] or ending, ending)),
                audit_period_beginning=_text(beginning),
                audit_period_ending=_text(ending)))
            for row in rows])


def _usage(session: orm.Session, row: _Row) -> dict[str, typing.Any]:
    return {
        'request_id': transaction.author_of(session).request_id,
        'uuid': row['assignment_uuid'], 'began_at': _text(row['began_at']),
        **{name: row[name] for name in (
            'instance_uuid', 'project_id', 'user_id', 'flavor', 'host',
            'device_uuid', 'address', 'serial', 'variant', 'vgpu_type',
            'resource_class')}}


def _text(at: datetime.datetime) -> str:
    return at.isoformat(timespec='seconds') + 'Z'


def _seconds(began: datetime.datetime, ended: datetime.datetime) -> int:
    return max(0, int((ended - began).total_seconds()))


def refused(event: _Row, refused_by: str, hosts_refused: Mapping[str, int],
            hosts_left: int | None) -> Notification:
    """Return the notification of a refusal.

    :param event: values of its row in ``events``, by column
    """
    return event_rules.event_type_of_refusal(
        {event['reason'], *hosts_refused}, hosts_left,
    ), history.RefusalPayload(
        refused_by=refused_by, hosts_refused=dict(hosts_refused),
        hosts_left=hosts_left, **{name: event[name] for name in (
            'request_id', 'instance_uuid', 'project_id', 'host', 'reason',
            'detail')})
