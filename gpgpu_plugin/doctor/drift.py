# SPDX-License-Identifier: Apache-2.0
"""Drifts: contradictions between authorities, and what may be done.

The authorities are gpgpu-conductor's database, Placement, Nova, and each host
with its book, its libvirt domains and its sysfs. Every kind of drift has a
name, a severity, and a safe repair or the reason that there is none. A repair
never gives a GPU to a second tenant, and never takes one from a running
guest.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping


class DriftSeverity(enum.StrEnum):
    """Severity of a drift.

    ``critical``: two tenants may get one GPU, or a guest may lose its GPU.
    ``warning``: GPUs are lost to users, or records are wrong. ``unknown``: it
    could not be determined whether there is a drift.
    """

    CRITICAL = 'critical'
    WARNING = 'warning'
    UNKNOWN = 'unknown'


class Repair(enum.StrEnum):
    """A repair, by what executes it.

    ``compare``: the host sends what is pending, and compares its assignments
    with the conductor, Nova and Placement, as it does by itself. ``offer``:
    the host reads its resource providers anew and writes what differs.
    ``prepare``: the host prepares assigned devices, as after a reboot.
    ``adopt``: the conductor puts the device into state assigned.
    ``quarantine``: the conductor quarantines the device. ``capacity``: the
    conductor computes the stored capacities. ``usage``: the conductor ends the
    usage. ``provider``: the command deletes the resource provider.
    """

    COMPARE = 'compare'
    OFFER = 'offer'
    PREPARE = 'prepare'
    ADOPT = 'adopt'
    QUARANTINE = 'quarantine'
    CAPACITY = 'capacity'
    USAGE = 'usage'
    PROVIDER = 'provider'


COUNTED = frozenset({
    'inventory_larger', 'inventory_smaller', 'capacity_wrong'})
"""Names of drifts whose numbers change in a busy cloud: only two equal
findings are a drift."""

OF_HOST = (Repair.PREPARE, Repair.COMPARE, Repair.OFFER)
"""Repairs that a host executes, in their order."""

OF_CONDUCTOR = (Repair.ADOPT, Repair.QUARANTINE, Repair.CAPACITY, Repair.USAGE)
"""Repairs that the conductor executes in its database."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of drift.

    :ivar meaning: sentence for operators
    :ivar repair: None: there is none
    :ivar advice: what the repair does and why that is safe, or why there is
        none and what the operator can do
    """

    name: str
    severity: DriftSeverity
    meaning: str
    repair: Repair | None = None
    advice: str


_CRITICAL, _WARNING, _UNKNOWN = DriftSeverity
_COMPARED = ('The host asks Nova and its hypervisor again and releases what '
             'is still unused; no device of a running guest is released')
_OFFERED = ('The host reads its provider in Placement and writes the '
            'conductor\'s inventory')

FOUND_BY_HOST: tuple[Kind, ...] = (
    Kind(name='instance_deleted', severity=_WARNING, repair=Repair.COMPARE,
         meaning='A device is assigned to an instance that Nova deleted.',
         advice=_COMPARED),
    Kind(name='instance_elsewhere', severity=_WARNING, repair=Repair.COMPARE,
         meaning='A device is assigned to an instance that is on another '
                 'host, and no migration needs the device.',
         advice=_COMPARED),
    Kind(name='destination_without_migration', severity=_WARNING,
         repair=Repair.COMPARE,
         meaning='A device is assigned for the destination of a migration '
                 'that Nova does not have, or that is over.',
         advice=_COMPARED),
    Kind(name='guest_device_unassigned', severity=_CRITICAL,
         meaning='The libvirt domain of an instance has a GPU or an mdev '
                 'that is not assigned to the instance.',
         advice='A device is never taken from a guest. Disable it with '
                '"gpgpu-manage hold add --kind disabled"; a hard reboot of '
                'the instance gives it the devices that are assigned to it'),
    Kind(name='guest_device_missing', severity=_CRITICAL,
         meaning='A guest runs, and its libvirt domain lacks a GPU or an '
                 'mdev that is assigned to the instance.',
         advice='Nothing is added to a running guest. A hard reboot of the '
                'instance gives it the devices that are assigned to it'),
    Kind(name='assigned_device_not_on_vfio', severity=_CRITICAL,
         repair=Repair.PREPARE,
         meaning='An assigned GPU is bound to a driver of the host, or to '
                 'none, and not to its VFIO driver.',
         advice='The host binds it again, as after a reboot'),
    Kind(name='assigned_mdev_missing', severity=_WARNING,
         repair=Repair.PREPARE,
         meaning='The mdev of an assigned vGPU does not exist.',
         advice='The host creates it again with the same UUID'),
    Kind(name='assigned_device_missing', severity=_CRITICAL,
         meaning='An assigned device is not in the sysfs of its host.',
         advice='Only Nova ends an assignment. Look for the hardware fault; '
                'move or delete the instance, whose guest has lost the GPU'),
    Kind(name='mdev_unassigned', severity=_WARNING,
         meaning='An mdev exists on a GPU of a variant, without an '
                 'assignment and without a cleaning that would remove it.',
         advice='It is unknown who made it and whether it is used. If '
                'nothing uses it, remove it: write 1 to the file "remove" of '
                'the mdev in sysfs'),
    Kind(name='vf_type_unassigned', severity=_WARNING,
         meaning='A VF of a GPU of a variant has a vGPU type, without an '
                 'assignment and without a cleaning that would remove it.',
         advice='It is unknown who set it and whether it is used. If nothing '
                'uses it, write 0 to nvidia/current_vgpu_type of the VF'),
    Kind(name='book_assignment_ended', severity=_WARNING,
         repair=Repair.COMPARE,
         meaning='The host\'s book has an assignment that the conductor does '
                 'not have, or has ended.',
         advice='The host compares its book with the conductor; what a '
                'restored database does not know, it reports and adopts'),
    Kind(name='book_assignment_lacking', severity=_CRITICAL,
         repair=Repair.COMPARE,
         meaning='The conductor has an assignment that the host\'s book '
                 'lacks.',
         advice='The host takes it into its book'),
    Kind(name='release_pending', severity=_WARNING, repair=Repair.COMPARE,
         meaning='The host\'s book has a release that the conductor has not '
                 'accepted, or of an assignment that it does not know.',
         advice='The host sends it; what ended already is skipped'),
    Kind(name='database_behind_book', severity=_CRITICAL,
         repair=Repair.COMPARE,
         meaning='The host\'s book is newer than the database, which was '
                 'restored from a backup.',
         advice='The host begins a new session and reports what it has'),
    Kind(name='quarantined_device_unbound', severity=_WARNING,
         meaning='A quarantined device has no driver, so that any driver of '
                 'the host may take it.',
         advice='Nothing is known about it. Repair it, then clean it with '
                '"gpgpu-manage device release"'),
    Kind(name='free_device_on_vfio', severity=_WARNING,
         meaning='A GPU that is offered is bound to a VFIO driver, and it is '
                 'not designated for guests at boot.',
         advice='Another service or person bound it, and may give it to a '
                'guest. If it is meant to stay so, run "gpgpu-host '
                'designate" on the host, else "gpgpu-host undesignate"'),
    Kind(name='designated_device_unmanaged', severity=_WARNING,
         meaning='A GPU is designated for guests at boot, and the conductor '
                 'offers it in no variant.',
         advice='Create a variant that matches it, or give it back with '
                '"gpgpu-host undesignate" on the host'),
    Kind(name='host_not_examined', severity=_UNKNOWN,
         meaning='A host did not answer, or could not examine itself.',
         advice='Nothing is concluded from silence. Start nova-compute '
                'there, and see its log'),
)
"""Kinds of drift that hosts find. No other kind is accepted from a host."""

KINDS: tuple[Kind, ...] = (
    *FOUND_BY_HOST,
    # -- found by the conductor ---------------------------------------------
    Kind(name='device_assigned_twice', severity=_CRITICAL,
         meaning='The database has two active assignments of one device.',
         advice='Only an operator knows whose it is. Stop one of the '
                'instances, then end its assignment with "gpgpu-manage '
                'assignment end"'),
    Kind(name='assignment_without_state', severity=_CRITICAL,
         repair=Repair.ADOPT,
         meaning='A device has an active assignment, and its state says that '
                 'it has none.',
         advice='The conductor puts the device into state assigned, so that '
                'it is neither cleaned nor offered'),
    Kind(name='state_without_assignment', severity=_CRITICAL,
         repair=Repair.QUARANTINE,
         meaning='A device is in state provisioning or assigned, and nobody '
                 'has it.',
         advice='The conductor quarantines the device: it may have a guest '
                'all the same. "gpgpu-manage device release" cleans it'),
    Kind(name='capacity_wrong', severity=_WARNING, repair=Repair.CAPACITY,
         meaning='The stored capacity of a type differs from what the '
                 'devices of its group give.',
         advice='The conductor computes it again'),
    Kind(name='host_not_reported', severity=_UNKNOWN,
         meaning='The database was restored from a backup, and the host has '
                 'not reported what it has since.',
         advice='Wait until "gpgpu-manage host list" does not show it as '
                'restored. A restart of nova-compute there hastens it'),
    Kind(name='usage_without_assignment', severity=_WARNING,
         repair=Repair.USAGE,
         meaning='A usage goes on, and its assignment has ended or never '
                 'existed.',
         advice='The conductor ends the usage when the assignment ended, or '
                'now if that is unknown, but not while a guest of the host '
                'may run with the device'),
    Kind(name='rows_unreadable', severity=_WARNING,
         meaning='The database has a value of a host or a variant that the '
                 'conductor cannot read. Nothing else of that host was '
                 'compared.',
         advice='Restore the value in the database: gpgpu-conductor writes '
                'no such values'),
    Kind(name='key_of_unknown_host', severity=_WARNING,
         meaning='A valid key belongs to a host that the database does not '
                 'have.',
         advice='The host may be about to report for the first time. '
                'Otherwise revoke the key with "gpgpu-manage key revoke"'),
    # -- found by the command -----------------------------------------------
    Kind(name='conductor_not_examined', severity=_UNKNOWN,
         meaning='After the repairs, gpgpu-conductor could not examine the '
                 'cloud.',
         advice='Examine it again'),
    # -- found in Placement -------------------------------------------------
    Kind(name='provider_missing', severity=_WARNING, repair=Repair.OFFER,
         meaning='A group of the conductor has no resource provider.',
         advice=_OFFERED),
    Kind(name='inventory_larger', severity=_CRITICAL, repair=Repair.OFFER,
         meaning='Placement offers more than the conductor has, so that '
                 'builds are sent to a host that refuses them.',
         advice=_OFFERED),
    Kind(name='inventory_smaller', severity=_WARNING, repair=Repair.OFFER,
         meaning='Placement offers less than the conductor has.',
         advice=_OFFERED),
    Kind(name='trait_missing', severity=_WARNING, repair=Repair.OFFER,
         meaning='A resource provider lacks a trait of its variant.',
         advice=_OFFERED),
    Kind(name='trait_foreign', severity=_WARNING, repair=Repair.OFFER,
         meaning='A resource provider has a trait that its variant lacks, so '
                 'that requests for it are sent there.',
         advice='The host reads its provider in Placement and writes the '
                'traits of the variant alone; "gpgpu-manage variant set '
                '--trait" adds traits'),
    Kind(name='provider_of_unknown_host', severity=_WARNING,
         repair=Repair.PROVIDER,
         meaning='A resource provider of the plugin is below a compute node '
                 'of no host of the database.',
         advice='The command deletes it. Placement refuses this while '
                'anything is allocated there'),
    Kind(name='allocation_without_assignment', severity=_WARNING,
         meaning='Placement has an allocation of GPUs that no assignment '
                 'accounts for, and its instance is not being built or '
                 'moved.',
         advice='Allocations are Nova\'s. See "nova-manage placement audit" '
                'and "nova-manage placement heal_allocations"'),
    Kind(name='assignment_without_allocation', severity=_CRITICAL,
         repair=Repair.COMPARE,
         meaning='The conductor believes that an allocation covers an '
                 'assignment, and Placement has none.',
         advice='The host compares allocations, and the conductor reserves '
                'the device in its inventory'),
    Kind(name='placement_not_examined', severity=_UNKNOWN,
         meaning='Placement could not be read.',
         advice='Name a cloud of clouds.yaml with --os-cloud, whose user is '
                'an administrator'),
    # -- found in Nova ------------------------------------------------------
    Kind(name='host_without_service', severity=_WARNING,
         meaning='The database has a host of which Nova has no nova-compute.',
         advice='If the host is gone, delete it with "gpgpu-manage host '
                'delete"'),
    Kind(name='flavor_of_unknown_class', severity=_WARNING,
         meaning='A flavor requests a resource class that no variant has.',
         advice='No host can meet it. Create the variant, or change the '
                'flavor with "gpgpu-manage flavor set" or "flavor unset"'),
    Kind(name='nova_not_examined', severity=_UNKNOWN,
         meaning='Nova could not be read.',
         advice='Name a cloud of clouds.yaml with --os-cloud, whose user is '
                'an administrator'),
)

BY_NAME: Mapping[str, Kind] = types.MappingProxyType(
    {kind.name: kind for kind in KINDS})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drift:
    """A drift that was found.

    :ivar name: of its kind
    :ivar subject: UUID, name or address of what drifted
    :ivar says: what each authority says, by its name
    :ivar repair: None: it is not repaired
    :ivar reason: why it is not repaired, or what the repair does
    """

    name: str
    host: str | None
    subject: str
    says: dict[str, str]
    repair: Repair | None
    reason: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity of the drift in another examination."""
        return self.name, self.host or '', self.subject

    @property
    def severity(self) -> DriftSeverity:
        """Return the severity of its kind."""
        return BY_NAME[self.name].severity


def of(name: str, host: str | None, subject: str, /, *,
       refused: str | None = None, **says: str) -> Drift:
    """Return a drift.

    :param refused: why it is not repaired now, although its kind could be
    :param says: what each authority says
    """
    kind = BY_NAME[name]
    return Drift(
        name=name, host=host, subject=subject, says=says,
        repair=None if refused else kind.repair,
        reason=refused or kind.advice)


# -- which repairs are executed ---------------------------------------------

_TWICE = ('A device of this host is assigned twice, and an iteration of its '
          'nova-compute might release it while one of the two guests runs. '
          'Settle that first')
_MAY_RUN = ('A guest of this host may run with the device, and its usage goes '
            'on then. Settle the other drift of this host first')
_FORBIDDEN: Mapping[str, tuple[Collection[Repair], str]] = {
    'device_assigned_twice': (
        (Repair.COMPARE, Repair.OFFER), _TWICE)
} | dict.fromkeys(
    ('book_assignment_ended', 'guest_device_unassigned', 'host_not_examined'),
    ((Repair.USAGE,), _MAY_RUN))
"""Repairs of a host that a drift forbids which is not repaired, and why."""


def allowed(found: Collection[Drift]) -> list[Drift]:
    """Return drifts, without repairs that another drift forbids."""
    forbidden = {
        (one.host, repair): reason for one in found
        if one.repair is None and one.name in _FORBIDDEN
        for repairs, reason in (_FORBIDDEN[one.name],) for repair in repairs}
    return [
        dataclasses.replace(one, repair=None, reason=reason)
        if one.repair is not None
        and (reason := forbidden.get((one.host, one.repair))) is not None
        else one for one in found]


def hosts_to_repair(found: Iterable[Drift],
                    ) -> Mapping[tuple[Repair, ...], list[str]]:
    """Return the hosts that execute repairs, by the repairs."""
    wanted: dict[str, set[Repair]] = {}
    for one in found:
        if one.host is not None and one.repair in OF_HOST:
            wanted.setdefault(one.host, set()).add(one.repair)
    batches: dict[tuple[Repair, ...], list[str]] = {}
    for host, its in sorted(wanted.items()):
        batches.setdefault(tuple(
            repair for repair in OF_HOST if repair in its),
            []).append(host)
    return batches
