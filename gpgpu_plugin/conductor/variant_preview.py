# SPDX-License-Identifier: Apache-2.0
"""Devices that hosts would clean if some variants were created.

Nothing is locked or written.
"""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import hold
from gpgpu_plugin.domain import variant as rules
from gpgpu_plugin.objects import admin as objects

_State = device_rules.DeviceState


def page(session: orm.Session, wanted: Sequence[rules.Variant], limit: int,
         after: int) -> tuple[objects.VariantPreview, ...]:
    """Return hosts that have devices with the ids of wanted variants.

    :param limit: number of hosts at most
    :param after: id of the host before the first one
    """
    ids = sorted({host_id for ids in {(variant.vendor, variant.device)
                                      for variant in wanted}
                  for host_id in device_db.host_ids_by_ids(
                      session, *ids, after, limit)})[:limit]
    names = {group.id: group.variant.name
             for group in group_db.of_hosts(session, ids)}
    variants = [*wanted, *(
        variant_db.to_domain(row) for row in variant_db.all(session)
        if row.status != rules.Status.DELETING)]
    devices = collections.defaultdict[int, list[models.Device]](list)
    for device in device_db.of_hosts(session, ids):
        devices[device.host_id].append(device)
    holds = hold_db.kinds_of_hosts(session, ids)
    return tuple(
        objects.VariantPreview(
            host=host.name, host_id=host.id, devices=_cleaned(
                variants, {variant.name for variant in wanted},
                devices[host.id], names, holds))
        for host in host_db.by_ids(session, ids))


def _cleaned(variants: Sequence[rules.Variant], wanted: Collection[str],
             devices: Sequence[models.Device],
             names: Mapping[int, str],
             holds: Mapping[int, hold_db.Kinds]) -> dict[str, int]:
    """Return the numbers of devices of a host that it would clean.

    :param names: variants of the present groups, by id
    :param holds: kinds of the holds of devices, by id
    :returns: by the name of the wanted variant
    """
    current = {device.stable_id: names[device.group_id] for device in devices
               if device.group_id is not None}
    places = variant_matching.plan(
        variants, capacity.devices(devices, holds), current)
    by_name = {variant.name: variant for variant in variants
               if variant.name in wanted}
    counts = collections.Counter[str]()
    for device in devices:
        variant = by_name.get(places[device.stable_id].variant or '')
        if (variant is not None
                and not hold.is_withdrawn(holds.get(device.id, ()))
                and _is_cleaned(device, variant)):
            counts[variant.name] += 1
    return dict(counts)


def _is_cleaned(device: models.Device, variant: rules.Variant) -> bool:
    """Return whether a device is cleaned when its group has this variant."""
    return device.state == _State.DIRTY or (
        device.state == _State.AVAILABLE and capacity.must_be_cleaned(
            device, variant, offers_whole=True))
