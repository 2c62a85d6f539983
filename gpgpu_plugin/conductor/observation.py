# SPDX-License-Identifier: Apache-2.0
"""Work out the rows of a host after a scan of the host.

``observe`` is a function of values. Its passes, in their order, each of which
needs what the ones before found:

1. Cards: which known card is in which place (card_identity).
2. Functions: what the scan read of each, and the health of GPUs.
3. VFs: to which GPU they belong.
4. Functions that the scan did not find are missing.
5. Cards that took the place of others are held, unless they were awaited.
6. Sightings: cards that were elsewhere, and what operators decided of them.
7. The book of the host: what the database does not know is adopted.
8. Groups, types, changes of variants, and what must be cleaned again
   (variant_matching).
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import card_identity
from gpgpu_plugin.conductor import device_rows
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import restore_recovery
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import report as objects


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """Knowledge of the database beside the rows of the host.

    :ivar places: stable ids of mdevs made for assignments, by UUID
    :ivar unknown: assignments in the host's book that the database does not
        know
    :ivar seen: sightings of the numbers of the host's cards, in any place
    :ivar decisions: see card_identity.Decisions
    :ivar variants: all variants
    :ivar at: time of the transaction (UTC)
    """

    places: Mapping[str, str]
    unknown: Sequence[claim_obj.Assignment]
    seen: Sequence[card_identity.Sighting]
    decisions: card_identity.Decisions
    variants: variant_matching.Variants
    at: datetime.datetime


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observed:
    """Rows and sightings of a host after a scan."""

    adopted: restore_recovery.Adopted
    sightings: Sequence[card_identity.Sighting]

    @property
    def rows(self) -> host_rows.HostRows:
        """Return the rows."""
        return self.adopted.rows


def observe(before: host_rows.HostRows, scan: objects.HostReport,
            facts: Facts, *, rebooted: bool) -> Observed:
    """Return the rows of a host with what a scan found.

    :param rebooted: whether the machine booted since the scan before
    :raises Invalid: the database was restored and the book was not sent
    """
    is_restored = before.is_held(device_rules.HostHoldKind.RESTORED)
    followed = card_identity.follow(before, scan.functions)
    rows, new = followed.rows, set(followed.moved)
    known = _Known(
        places={**facts.places, **{
            row.uuid: row.device.stable_id for row in rows.assignments}, **{
            assignment.uuid: assignment.stable_id
            for assignment in facts.unknown}},
        used={**rows.types_in_use, **{
            assignment.stable_id: assignment.vgpu_type
            for assignment in facts.unknown}},
        displaced=followed.displaced)
    absent = {device.stable_id for device in before.devices
              if not device.present}
    functions = [function for function in scan.functions
                 if (function.pf or function.id) not in followed.kept]
    for function in functions:
        device = rows.by_stable_id.get(function.id)
        if device is None:
            rows = _insert(rows, scan, function, known)
            new.add(function.id)
        else:
            rows = _update(rows, device, scan, function, known,
                           restored=is_restored)
        rows = device_rows.store_health(
            rows, rows.by_stable_id[function.id],
            scan.health.get(function.id))
    found = {function.id for function in functions}
    returned = (absent & found) - new
    rows = _lose(_relate(rows, functions, returned), found)
    for place, gpu in followed.displaced.items():
        rows = retirement.occupy(
            rows, rows.now(gpu), rows.by_stable_id[place],
            is_new=place not in followed.moved)
    rows = _move_mdev_rows(rows, found)
    rows, seen = card_identity.check_sightings(
        rows, facts.seen, facts.decisions, found, new, returned,
        rebooted=rebooted)
    adopted = restore_recovery.adopt(rows, scan.assignments, facts.unknown,
                                     facts.at)
    return Observed(sightings=seen, adopted=adopted._replace(
        rows=variant_matching.matched(adopted.rows, facts.variants)))


def _relate(rows: host_rows.HostRows, functions: Sequence[pci.PCIFunction],
            returned: Collection[str]) -> host_rows.HostRows:
    """Join VFs to their GPUs.

    :param returned: stable ids of functions that were away, so that guests
        may have had the whole GPU of a VF
    """
    found = {function.id: function.pf for function in functions}
    changed = []
    for stable_id, pf in found.items():
        vf = rows.by_stable_id[stable_id]
        gpu = rows.by_stable_id[pf] if pf in found else None
        if gpu is None:
            continue
        was_used = (stable_id in returned
                    and gpu.cleaned_steps == device_db.NOTHING_PASSED)
        if vf.parent_id != gpu.id or was_used:
            changed.append(dataclasses.replace(
                vf, parent_id=gpu.id, cleaned_steps=device_db.NOTHING_PASSED
                if was_used else vf.cleaned_steps))
    return rows.put(*changed)


def _lose(rows: host_rows.HostRows,
          found: Collection[str]) -> host_rows.HostRows:
    """Record that the host does not report some functions any more."""
    for device in rows.devices:
        if (device.kind == device_rules.DeviceKind.PCI and device.present
                and device.stable_id not in found):
            rows = rows.put(dataclasses.replace(
                device_rows.lose_health(device), present=False))
            if device_rules.HoldKind.RETIRED not in device.holds:
                rows = rows.note('missing', [device])
    return rows


def _move_mdev_rows(rows: host_rows.HostRows,
                    found: Collection[str]) -> host_rows.HostRows:
    """Set the addresses of mdev rows to those of their GPUs."""
    return rows.put(*(
        dataclasses.replace(device, address=gpu.address)
        for device in rows.devices
        if device.kind == device_rules.DeviceKind.MDEV
        and (gpu := rows.gpu_of(device)).stable_id in found
        and device.address != gpu.address))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Known:
    """Knowledge about a host that the functions of its scan do not have.

    :ivar places: stable ids of mdevs made for assignments, by UUID
    :ivar used: types of devices that are not available, or will not be when
        the host's book is adopted, by stable id
    :ivar displaced: stable ids of places in which another GPU was
    """

    places: Mapping[str, str]
    used: Mapping[str, str | None]
    displaced: Collection[str]


def _insert(rows: host_rows.HostRows, scan: objects.HostReport,
            function: pci.PCIFunction,
            known: _Known) -> host_rows.HostRows:
    vgpus = _vgpu_capability(None, scan, function, known)
    device = dataclasses.replace(device_db.observed(
        device_rows.new_row(rows, function.id, function.address),
        function, vgpus, vgpu.merge_reports(
            None, scan.driver_capacities.get(function.id), known.places,
            known.used)), vgpu_type=_foreign_type(function, vgpus),
        new_in_place=(function.pf or function.id) in known.displaced)
    return rows.put(device).note('appeared', [device])


def _update(rows: host_rows.HostRows, device: host_rows.Device,
            scan: objects.HostReport, function: pci.PCIFunction,
            known: _Known, *, restored: bool) -> host_rows.HostRows:
    before = device_db.pci_function(device)
    function = card_identity.remembered(device, function)
    vgpus = _vgpu_capability(
        device_db.vgpu_capability(device), scan, function, known)
    driver = vgpu.merge_reports(
        device_db.driver_capacity(device),
        scan.driver_capacities.get(function.id), known.places, known.used)
    now = device_db.observed(device, function, vgpus, driver)
    if function.pf is None and not before.has_vfs and (
            restored if function.has_vfs else function.owner):
        # Others use the whole GPU, or may have done so since the backup.
        now = dataclasses.replace(
            now, cleaned_steps=device_db.NOTHING_PASSED)
    if now == device and device.present:
        return rows
    if device.state == device_rules.DeviceState.AVAILABLE:
        now = dataclasses.replace(
            now, vgpu_type=_foreign_type(function, vgpus))
    now = dataclasses.replace(now, address=function.address, present=True)
    rows = rows.put(now)
    if (not device.present
            and device_rules.HoldKind.RETIRED not in device.holds):
        rows = rows.note('returned', [now])
    # A guest of the service that managed the device may have used it. A GPU
    # that had VFs was not used itself.
    is_reported = (function.pf is not None or function.has_vfs
               or function.id not in scan.vgpu_capabilities)
    return holds.distrust(
        rows, device, f'no longer managed by {before.owner}',
    ) if (is_reported and before.owner and not function.owner
          and not before.has_vfs) else rows


def _vgpu_capability(
    stored: vgpu.VGPUCapability | None, scan: objects.HostReport,
    function: pci.PCIFunction, known: _Known,
) -> vgpu.VGPUCapability | None:
    """Return what is known about a function's vGPUs after a scan."""
    observed = scan.vgpu_capabilities.get(function.id)
    in_use = function.id in known.used
    return vgpu.merge_capability(
        stored, observed, in_use=in_use,
        # The type of a VF in use was set for its assignment.
        own_vgpus=observed.existing_vgpus
        if observed and in_use and function.pf is not None else known.places)


def _foreign_type(function: pci.PCIFunction,
                  vgpus: vgpu.VGPUCapability | None) -> str | None:
    """Return the type id that a VF has and that the plugin did not set.

    Return None for functions that are not VFs.
    """
    if function.pf is None or vgpus is None or not vgpus.existing_vgpus:
        return None
    return vgpus.existing_vgpus[0]


# -- Check of reports: what no host can have is not stored.
#
# A host may send anything, and what it sends is read again in transactions and
# by schedulers that decide about other hosts.


_MAX_FUNCTIONS = 4096
"""Four times as many as 16 GPUs with 64 VFs each."""

_MAX_NUMA_NODES = 64
"""Twice as many as the largest machines have sockets. Schedulers look at each
node, and at sets of nodes."""

_MAX_TYPES = 128
"""vGPU types of one function; drivers list several dozen."""


def checked_report(scan: objects.HostReport) -> objects.HostReport:
    """Return a scan without vGPU types that no GPU has.

    They come from a driver's text, and the host's other devices are not
    concerned. ``problems`` says what is left out. All else comes from the
    kernel, which reports no such numbers.

    :raises Invalid: another number is impossible, or a function is repeated
    """
    _check(scan)
    addresses = {function.id: function.address for function in scan.functions}
    capabilities, problems = {}, list[str]()
    for stable_id, found in scan.vgpu_capabilities.items():
        reasons = _reasons(found)
        if reasons:
            found = dataclasses.replace(found, types=tuple(
                known for known in found.types or ()
                if known.name not in reasons))
            problems += [
                f'{addresses.get(stable_id, stable_id)}: vGPU type '
                f'{name[:vgpu.MAX_TYPE_NAME]} is left out: {reason}'
                for name, reason in reasons.items()]
        capabilities[stable_id] = found
    if not problems:
        return scan
    return dataclasses.replace(
        scan, vgpu_capabilities=capabilities,
        problems=(*scan.problems, *problems))


def _reasons(found: vgpu.VGPUCapability) -> dict[str, str]:
    """Return why types are left out, by name."""
    types = found.types or ()
    reasons = {known.name: f'the driver lists more than {_MAX_TYPES} types'
               for known in types[_MAX_TYPES:]}
    for known in types:
        reason = vgpu.implausible_type(known)
        if reason is not None:
            reasons[known.name] = reason
    return reasons


def _check(scan: objects.HostReport) -> None:
    if len(scan.functions) > _MAX_FUNCTIONS:
        raise exception.Invalid(
            field='report', value=f'{len(scan.functions)} functions',
            expected=f'{_MAX_FUNCTIONS} at most')
    nodes = {function.numa_node for function in scan.functions}
    if len(nodes) > _MAX_NUMA_NODES:
        raise exception.Invalid(
            field='report', value=f'{len(nodes)} NUMA nodes',
            expected=f'{_MAX_NUMA_NODES} at most')
    seen: set[str] = set()
    for function in scan.functions:
        if function.id in seen:
            raise exception.Invalid(
                field='report', value=function.id,
                expected='each stable id once')
        seen.add(function.id)
