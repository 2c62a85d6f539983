# SPDX-License-Identifier: Apache-2.0
"""Devices that hosts would clean if some variants were created.

Nothing is locked or written.
"""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
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
    variants = [*wanted, *(
        row.value for row in variant_db.all(session)
        if not row.deleting)]
    return tuple(
        objects.VariantPreview(
            host=rows.host.name, host_id=rows.host.id, devices=_cleaned(
                variants, {variant.name for variant in wanted}, rows))
        for rows in host_rows.load(
            session, host_db.by_ids(session, ids)).values())


def _cleaned(variants: Sequence[rules.Variant], wanted: Collection[str],
             rows: host_rows.HostRows) -> dict[str, int]:
    """Return the numbers of devices of a host that it would clean.

    :returns: by the name of the wanted variant
    """
    names = {group.id: group.variant.name for group in rows.bare_groups}
    places = variant_matching.plan(variants, capacity.devices(rows), {
        device.stable_id: names[device.group_id] for device in rows.devices
        if device.group_id is not None})
    by_name = {variant.name: variant for variant in variants
               if variant.name in wanted}
    counts = collections.Counter[str]()
    for device in rows.devices:
        variant = by_name.get(places[device.stable_id].variant or '')
        if (variant is not None and not hold.is_withdrawn(device.holds)
                and _is_cleaned(device, variant)):
            counts[variant.name] += 1
    return dict(counts)


def _is_cleaned(device: host_rows.Device, variant: rules.Variant) -> bool:
    """Return whether a device is cleaned when its group has this variant."""
    return device.state == _State.DIRTY or (
        device.state == _State.AVAILABLE and capacity.must_be_cleaned(
            device, variant, offers_whole=True))
