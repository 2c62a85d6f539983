# SPDX-License-Identifier: Apache-2.0
"""Health of devices as their hosts report it.

All functions run in a transaction that locked the device's host.
"""

from __future__ import annotations

import dataclasses
import logging

from sqlalchemy import orm

from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.db import card as card_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import health
from gpgpu_plugin.domain import pci


@dataclasses.dataclass(frozen=True, kw_only=True)
class Before:
    """Facts about a device before a scan is stored.

    :ivar is_whole: a GPU whose driver made no vGPUs
    :ivar is_same: its number is known, and the scan has read it again
    """

    is_whole: bool
    is_same: bool

    @classmethod
    def of(cls, row: models.Device, function: pci.PCIFunction) -> Before:
        """Return what a row was.

        :param function: as the scan read it
        """
        numbers = zip(
            card_db.numbers(device_db.identity(row)),
            card_db.numbers(pci.Identity.of(function)), strict=True)
        return cls(
            is_whole=(row.parent_id is None
                      and device_db.vgpu_capability(row) is None
                      and not device_db.pci_function(row).has_vgpus),
            is_same=any(known is not None and known == now
                        for known, now in numbers))


def store(session: orm.Session, host: models.Host, row: models.Device,
          condition: health.Condition | None,
          was: Before | None = None) -> None:
    """Store the health of a device after a scan, with an event if it changed.

    The numbers behind it may change without an event.

    :param condition: None: the scan did not judge it
    :param was: None: its row is new
    """
    if condition is None:
        return
    before = row.health
    row.health = str(condition.health)
    row.health_reason = condition.reason
    row.errors = device_db.dump(condition.errors)
    if before == row.health or (
            before is None and condition.health is health.Health.OK):
        return
    event_db.add(
        session, 'health', host.name, row,
        detail=f'{before or "not known"} -> {row.health}' + (
            f': {condition.reason}' if condition.reason else ''),
        level=logging.INFO if condition.health is health.Health.OK
        else logging.WARNING)
    host_db.changed(host)
    if before == health.Health.FAILED and was is not None:
        _distrust(session, host, row, was)


def lose(row: models.Device) -> None:
    """Forget the health of a device that a scan did not find.

    That it had failed is kept, since it must be cleaned if it returns.
    """
    if row.health != health.Health.FAILED:
        row.health = row.health_reason = row.errors = None


def _distrust(session: orm.Session, host: models.Host,
              row: models.Device, was: Before) -> None:
    """Have a device cleaned that did not answer and does so again.

    It was reset, repaired or replaced meanwhile; a number tells that it is the
    same. A GPU whose driver makes vGPUs is left alone: nobody gets it as a
    whole.
    """
    if was.is_whole and not was.is_same:
        row.whole_use = 'the GPU did not answer, and may have been replaced'
    elif (device_db.vgpu_capability(row) is not None
            or device_db.pci_function(row).has_vgpus):
        return
    if row.state == device_rules.DeviceState.AVAILABLE:
        recleaning.distrust(session, row)
        event_db.add(session, 'distrust', host.name, row,
                     detail='it answers again')
