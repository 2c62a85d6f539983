# SPDX-License-Identifier: Apache-2.0
"""Changes of variants: their preview, and their way to all hosts.

The transaction that changes a variant locks no host: it gives the change a
number. Each transaction of a host first brings the host up to the newest
number (``variant_matching.up_to_date``), so that a claim never goes by an
older variant. Schedulers and Placement learn of the change when their host is
written; a sweep writes the hosts that are behind, one by one. Any conductor
can do so at any time, and after a crash.

A host that is locked has a transaction of its own, and is left for the next
sweep, as one is on which the change fails.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import host_messages
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import api
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import variant as rules
from gpgpu_plugin.objects import admin as objects
from gpgpu_plugin.rpc import compute_api

LOG = logging.getLogger(__name__)

INTERVAL = 60
"""Seconds between two sweeps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepCaller:
    """Whoever waits until a variant is changed.

    :ivar check_wanted: raises if the caller has given up; then nothing is
        changed
    :ivar is_over: returns whether the part of the caller's time is over in
        which hosts are written; the rest is left to the next sweep
    :ivar tell: takes the name of a host that changed
    """

    check_wanted: Callable[[], None] = lambda: None
    is_over: Callable[[], bool] = lambda: False
    tell: Callable[[str], None] = lambda host: None


PATIENT = SweepCaller()
"""A caller who waits until all hosts were tried."""


def run(db: api.Database, caller: SweepCaller = PATIENT) -> None:
    """Bring hosts up to date until all were tried; never raises.

    What is left, also if the caller's time is over, the next sweep does.
    """
    try:
        with db.reader() as session:
            host_ids = variant_db.hosts_behind(session)
            is_prunable = variant_db.is_prunable(session)
        for host_id in host_ids:
            if caller.is_over():
                return
            _try(db, host_id, caller)
        if is_prunable:
            db.write(_prune)
    except Exception:
        # The database's driver has errors of its own.
        LOG.exception('Cannot bring all hosts up to date with changes of '
                      'variants; trying again in %s s', INTERVAL)


def _try(db: api.Database, host_id: int, caller: SweepCaller) -> None:
    try:
        changed = db.write(functools.partial(_bring, host_id=host_id))
    except exception.ConductorUnavailable:
        raise
    except Exception:
        # One host must not keep the change from others, whatever it has
        # reported.
        LOG.exception('Cannot bring host %s up to date with changes of '
                      'variants; trying again in %s s', host_id, INTERVAL)
    else:
        if changed is not None:
            caller.tell(changed)


def _bring(session: orm.Session, host_id: int) -> str | None:
    """Bring a host up to date, unless it is locked, or is so by now.

    :returns: its name if it changed
    """
    hosts = host_db.lock_ids(session, [host_id], skip_locked=True)
    if not hosts or hosts[0].deleted:
        return None
    [host] = hosts
    before = host_rows.load_one(session, host)
    # A variant that is deleted may have lost its last assignment.
    if host.variants_version >= before.newest_version and not any(
            group.is_deleting for group in before.bare_groups):
        return None
    after = settle.settle(
        session, before, variant_matching.apply(session, before))
    return None if after.generation == host.generation else host.name


def _prune(session: orm.Session) -> None:
    host_db.lock_row(session, 'variants')
    variant_db.prune(session)


class VariantSweep:
    """Thread that brings hosts up to date, and tells them."""

    def __init__(self, db: api.Database,
                 compute: compute_api.ComputeAPI) -> None:
        self._db = db
        self._compute = compute
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def run_once(self) -> None:
        """Bring all hosts up to date that are behind; never raises."""
        run(self._db,
            SweepCaller(is_over=self._stopped.is_set, tell=self._tell))

    def _tell(self, host: str) -> None:
        host_messages.notify_hosts(self._compute.refresh,
                                   gpgpu_context.admin(), host)

    def wake(self) -> None:
        """Have the thread sweep at once."""
        self._woken.set()

    def start(self) -> None:
        """Sweep in a thread of its own, until ``stop``."""
        self._stopped.clear()
        self._thread = threading.Thread(
            target=self._sweep, name='gpgpu-variants', daemon=True)
        self._thread.start()

    def _sweep(self) -> None:
        while not self._stopped.is_set():
            self._woken.clear()
            self.run_once()
            self._woken.wait(INTERVAL)

    def stop(self) -> None:
        """End the thread after the host under way."""
        if self._thread is not None:
            self._stopped.set()
            self._woken.set()
            self._thread.join()
            self._thread = None


# -- Devices that hosts would clean if some variants were created.
#
# Nothing is locked or written.


_State = device_rules.DeviceState


def preview_page(session: orm.Session, wanted: Sequence[rules.Variant],
                 limit: int, after: int) -> tuple[objects.VariantPreview, ...]:
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
        if (variant is not None and not device_rules.is_withdrawn(device.holds)
                and _is_cleaned(device, variant)):
            counts[variant.name] += 1
    return dict(counts)


def _is_cleaned(device: host_rows.Device, variant: rules.Variant) -> bool:
    """Return whether a device is cleaned when its group has this variant."""
    return device.state == _State.DIRTY or (
        device.state == _State.AVAILABLE and capacity.must_be_cleaned(
            device, variant, offers_whole=True))
