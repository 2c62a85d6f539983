# SPDX-License-Identifier: Apache-2.0
"""Export of a device's ledger in the form of NVIDIA's check SEC21-05.

The check (``BmGpuMemorySanitizationCheck`` of NVIDIA's ai-cloud-validation)
reads one entry per machine. Here a GPU takes the place of a machine, since
this plugin cleans GPUs one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import ledger

PLATFORM = 'openstack'

_AVAILABLE, _IN_USE, _SANITIZING = 'available', 'in_use', 'sanitizing'
_ERROR, _MAINTENANCE = 'error', 'maintenance'
_DELETED = 'decommissioned'

_S, _V = device_rules.DeviceState, ledger.Verdict

_OF_STATE: Mapping[str, str] = {
    _S.AVAILABLE: _AVAILABLE, _S.PROVISIONING: _IN_USE, _S.ASSIGNED: _IN_USE,
    _S.DIRTY: _SANITIZING, _S.CLEANING: _SANITIZING,
    device_rules.QUARANTINED: _ERROR, device_rules.RETIRED: _DELETED}
"""Names of the check for shown states; all others are ``maintenance``."""

_OF_VERDICT: Mapping[str, tuple[str, ...]] = {
    _V.PASSED: (_SANITIZING, _AVAILABLE), _V.FAILED: (_SANITIZING, _ERROR),
    _V.OUTDATED: (_SANITIZING,), _V.INTERRUPTED: (_SANITIZING,),
    _V.QUARANTINED: (_ERROR,), _V.RELEASED: (_MAINTENANCE,),
    _V.ACCEPTED: (_MAINTENANCE,)}

_TRANSITIONS = 20
"""Number of transitions that are listed, the last ones."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Present:
    """A device as it is now.

    :ivar shown_state: None: it was deleted
    :ivar vendor: PCI id
    """

    shown_state: str | None = None
    in_use: bool = False
    host: str = ''
    address: str = ''
    vendor: str = ''
    variant: str = ''


def export(head: ledger.Head, records: Sequence[ledger.Record],
           present: Present, later: ledger.Head | None = None,
           ) -> dict[str, object]:
    """Return what the check reads, of one device.

    :param later: see ledger.defect
    """
    defect = ledger.defect(records, head, later)
    # Nothing can be said of a device whose records are not whole.
    machines = [] if defect else [_machine(
        head, [found.fields for found in records], present)]
    return {
        'success': defect is None, 'platform': PLATFORM, 'site_id': '',
        'machines_checked': len(machines), 'error': defect or '',
        'machines': machines}


def _machine(head: ledger.Head, entries: Sequence[Mapping[str, object]],
             present: Present) -> dict[str, object]:
    status = (_DELETED if present.shown_state is None
              else _OF_STATE.get(present.shown_state, _MAINTENANCE))
    transitions = _transitions(entries, status)
    return {
        'machine_id': head.device_uuid, 'status': status,
        'available': status == _AVAILABLE and not present.in_use,
        'in_use': status == _IN_USE, 'has_gpu': True,
        # Unless it has no records, which it should have.
        'served_tenant': _IN_USE in transitions or (
            head.was_cleaned and not entries),
        'sanitized': _is_sanitized(
            entries, is_being_cleaned=status == _SANITIZING,
            was_cleaned=head.was_cleaned),
        'stale_tenant_binding': status == _AVAILABLE and present.in_use,
        'vendor': present.vendor, 'product_name': present.variant,
        'bios_version': '', 'transitions': transitions[-_TRANSITIONS:],
        # Not the check's: where the evidence is.
        'host': present.host, 'address': present.address,
        'records': head.number, 'last_hash': head.hash}


def _transitions(entries: Iterable[Mapping[str, object]],
                 status: str) -> list[str]:
    """Return the check's names of what happened, until now."""
    found: list[str] = []
    tenancy: object = None
    for entry in entries:
        if entry['assignment_uuid'] not in (None, tenancy):
            tenancy = entry['assignment_uuid']
            found.append(_IN_USE)
        found += _OF_VERDICT[str(entry['verdict'])]
    found.append(status)
    return [name for name, before in zip(found, ['', *found], strict=False)
            if name != before]


def _is_sanitized(entries: Sequence[Mapping[str, object]], *,
                  is_being_cleaned: bool, was_cleaned: bool) -> bool:
    """Return whether the device passed a cleaning after each tenant.

    A cleaning counts if a step that says something about memory passed.

    :param is_being_cleaned: that after the last tenant has not ended yet
    """
    tenancy: object = None
    # Its records are gone, or were never written.
    is_pending = was_cleaned and not entries
    for entry in entries:
        if entry['assignment_uuid'] not in (None, tenancy):
            if is_pending:
                return False
            tenancy, is_pending = entry['assignment_uuid'], True
        if entry['verdict'] == _V.PASSED:
            if tenancy is not None and not _is_about_memory(entry):
                return False
            is_pending = False
    return is_being_cleaned or not is_pending


def _is_about_memory(entry: Mapping[str, object]) -> bool:
    results = entry['results']
    return isinstance(results, list) and any(
        result['outcome'] == cleaning.Outcome.PASSED
        and (result['step'] in cleaning.ABOUT_MEMORY
             or (result['step'] not in cleaning.SHIPPED
                 and result['facts'].get(cleaning.MEMORY) == 1))
        for result in results)
