# SPDX-License-Identifier: Apache-2.0
"""Available devices that must be cleaned before a guest gets them.

A device is offered only if this host has cleaned it since the device was first
seen here, since its identity changed, since somebody used it, since a restore
of the database, and since another host showed the number of its card. What is
known of that is ``cleaned_steps``: the steps of its last cleaning, ''
(``NOTHING_PASSED``) if something happened since, and NULL for a new device.

Whether a device must be cleaned is decided by ``capacity.must_be_cleaned``
alone. Nothing that nobody can get is dirty: nobody would clean it, so it would
wait for ever, and the host may use it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import device as device_rules

_Event = device_rules.DeviceEvent
_State = device_rules.DeviceState

_NEW = 'this host has not cleaned it yet'


def first_reason(device: models.Device) -> str | None:
    """Return why a device is dirty that nobody used since it was first seen.

    :returns: None: it is not dirty, or for another reason
    """
    return (_NEW if device.state == _State.DIRTY
            and device.cleaned_steps is None else None)


def distrust(session: orm.Session, host: models.Host, device: models.Device,
             detail: str) -> None:
    """Withdraw the verdict of a device; of a GPU, also those of its VFs.

    The device becomes dirty as soon as somebody can get it
    (``clean_again``), and after its assignment if it has one.

    :param detail: why, for the event
    """
    for part in device_db.with_vfs(session, device):
        part.cleaned_steps = device_db.NOTHING_PASSED
    event_db.add(session, 'distrust', host.name, device, detail=detail)
    host_db.changed(host)


def clean_again(session: orm.Session,
                hosts: Mapping[int, models.Host]) -> None:
    """Make the devices dirty that must be cleaned now.

    A new GPU that is dirty and that nobody can get as a whole any more, as it
    got VFs, is available again: guests get these.

    :param hosts: (locked) hosts by id
    """
    session.flush()
    for device, variant, offers_whole in device_db.clean_or_new(
            session, list(hosts)):
        must = variant is not None and capacity.must_be_cleaned(
            device, variant_db.to_domain(variant), offers_whole=offers_whole)
        host = hosts[device.host_id]
        if must and device.state == _State.AVAILABLE:
            _make_dirty(session, host, device)
        elif not must and device.state == _State.DIRTY:
            device_db.transition(session, device, _Event.ACCEPT)
            device.clean_token = device.clean_attempt = device.reason = None
            host_db.changed(host)


def _make_dirty(session: orm.Session, host: models.Host,
                device: models.Device) -> None:
    passed = device.cleaned_steps
    device_db.transition(session, device, _Event.DISTRUST)
    device.clean_token = str(uuid.uuid4())
    device.reason = None
    host_db.changed(host)
    # Otherwise the event is that of the doubt.
    if passed != device_db.NOTHING_PASSED:
        event_db.add(session, 'distrust', host.name, device, detail=(
            _NEW if passed is None else
            f'its last cleaning passed {passed}, and the cleaning policy of '
            f'its variant requires more'))


def try_again(session: orm.Session, hosts: Mapping[int, models.Host],
              variant: models.Variant) -> None:
    """Have devices cleaned that wait for another policy of their variant.

    :param hosts: (locked) hosts by id
    """
    for device in device_db.of_hosts(session, list(hosts)):
        if (device.state == device_rules.DeviceState.DIRTY
                and device.clean_attempt is not None
                and device.group is not None
                and device.group.variant_id == variant.id):
            device_db.try_again(device)
            host_db.changed(hosts[device.host_id])
