# SPDX-License-Identifier: Apache-2.0
"""The ledger of cleanings: a chain of records per device; its export.

A record says how a cleaning ended, with its evidence, or why a device is
quarantined or was released from quarantine. Its content is canonical JSON,
which is stored, sent and hashed as it is. It names the hash of the record
before it, so that a change of one record shows in all that follow.

doc/source/admin/ledger.rst has the same checks as a script, for people who
do not have the plugin. Keep both the same.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules

VERSION = 1
"""Version of the fields of a record."""

PAGE_SIZE = 100
"""Number of records that a caller gets at once; each may be of many kB."""

_MAX_SECONDS = 1e9


class Verdict(enum.StrEnum):
    """Verdict of a record on its device.

    ``passed``: it may have the next tenant. ``failed``: it is quarantined
    after a cleaning, or waits for another cleaning policy. ``outdated``: it
    failed no step that its host was asked for, but the policy requires others
    now, and it is cleaned again.
    ``interrupted``: the attempt ended without a verdict, and another one
    began. ``quarantined``: it is quarantined for a reason that no cleaning
    found. ``released``: an operator had it cleaned again, which proves
    nothing. ``accepted``: an operator took it as clean while it was new, which
    proves nothing either.
    """

    PASSED = 'passed'
    FAILED = 'failed'
    OUTDATED = 'outdated'
    INTERRUPTED = 'interrupted'
    QUARANTINED = 'quarantined'
    RELEASED = 'released'
    ACCEPTED = 'accepted'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """The fields of a record, all of which its hash covers.

    They name their objects by text, since the record outlives them.

    :ivar device_uuid: whose chain it is in
    :ivar number: its place in the chain; the first one is 1
    :ivar previous_hash: of the record before it; '' for the first one
    :ivar serial: serial number of the device, if it has one
    :ivar verdict: a Verdict
    :ivar reason: of a verdict other than ``passed``
    :ivar policy: cleaning policy of the device at the end
    :ivar steps: those that had to pass
    :ivar results: of the steps that the host took, in their order
    :ivar request: what made the device dirty, see objects.claim.CleanTask
    :ivar attempt: UUID of the cleaning
    :ivar assignment_uuid: the last assignment of the device, with the instance
        and project that had it; None if there was none
    :ivar actor: the operator who quarantined, released or accepted the device,
        and the key that signed the call; None if none did
    :ivar started_at: when the cleaning began, ISO 8601, UTC
    :ivar finished_at: when the record was written, ISO 8601, UTC
    """

    device_uuid: str
    number: int
    previous_hash: str
    host: str
    stable_id: str
    address: str
    serial: str | None = None
    variant: str | None = None
    verdict: str
    reason: str | None = None
    policy: str
    steps: tuple[str, ...] = ()
    results: tuple[cleaning.StepResult, ...] = ()
    request: str | None = None
    attempt: str | None = None
    assignment_uuid: str | None = None
    instance_uuid: str | None = None
    project_id: str | None = None
    actor: str | None = None
    started_at: str | None = None
    finished_at: str
    version: int = VERSION


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """A record as it is stored and sent.

    :ivar content: the fields of an Entry, as canonical JSON
    :ivar hash: its SHA-256
    """

    number: int
    content: str
    hash: str

    @property
    def marker(self) -> str:
        """Marker of the records after this one."""
        return str(self.number)

    @property
    def fields(self) -> dict[str, object]:
        """Return the fields of the content; of a forged one, itself."""
        try:
            found = json.loads(self.content)
        except (ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) else {'content': self.content}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """End of a chain, which is stored apart from its records.

    :ivar number: number of its records
    :ivar hash: of its last record; '' if there is none
    :ivar was_cleaned: the device has a verdict, of which there should be a
        record
    """

    device_uuid: str
    number: int = 0
    hash: str = ''
    was_cleaned: bool = False


_READ = frozenset(('device_uuid', 'number', 'previous_hash', 'verdict',
                   'assignment_uuid', 'results'))
"""Fields of records of each version."""


def content(fields: object) -> str:
    """Return the canonical JSON of fields: ASCII, sorted, without spaces."""
    return json.dumps(fields, sort_keys=True, separators=(',', ':'))


def digest(text: str) -> str:
    """Return the hash of a content."""
    return hashlib.sha256(text.encode('ascii')).hexdigest()


def record(entry: Entry) -> Record:
    """Return the record of some fields."""
    fields = dataclasses.asdict(dataclasses.replace(
        entry, results=tuple(map(_finite, entry.results))))
    text = content(fields)
    return Record(number=entry.number, content=text, hash=digest(text))


def _finite(result: cleaning.StepResult) -> cleaning.StepResult:
    """Return a result whose duration is finite, in seconds rounded to ms."""
    # In this order: neither comparison is true of NaN, which becomes 0.
    seconds = max(0.0, min(float(result.seconds), _MAX_SECONDS))
    return dataclasses.replace(result, seconds=round(seconds, 3))


def chain_defect(records: Iterable[Record], head: Head,
                 later: Head | None = None) -> str | None:
    """Return what is wrong with a whole chain, at its first record that is.

    :param head: read before the records: a chain may have become longer
    :param later: read after them: nobody wrote the records beyond it
    :returns: None if each record is as it was written, and none is missing
    """
    number, previous = 0, ''
    for found in records:
        number += 1
        wrong = _defect(found, head.device_uuid, number, previous)
        if wrong is None and number == head.number and found.hash != head.hash:
            wrong = (f'its hash is {found.hash}, and {head.hash} was noted '
                     f'when it was written')
        if wrong is not None:
            return f'record {number}: {wrong}'
        previous = found.hash
    if number < head.number:
        return (f'record {number + 1}: it is missing, and so are all after '
                f'it: {head.number} were written')
    if later is not None and number > later.number:
        return (f'record {later.number + 1}: it was forged, and so were all '
                f'after it: {later.number} were written')
    return None


def _defect(found: Record, device_uuid: str, number: int,
            previous: str) -> str | None:
    """Return what is wrong with the record that should be in a place."""
    if found.number != number:
        return f'it is missing: the next one has the number {found.number}'
    if not found.content.isascii() or digest(found.content) != found.hash:
        return f'its content does not have the hash {found.hash}'
    fields = found.fields
    if not _is_entry(fields) or content(fields) != found.content:
        return 'its content is not that of a record'
    if (fields['device_uuid'], fields['number']) != (device_uuid, number):
        return (f'it was written as record {fields["number"]} of device '
                f'{fields["device_uuid"]}')
    if fields['previous_hash'] != previous:
        return (f'it follows a record with the hash '
                f'{fields["previous_hash"] or "(empty)"}, not '
                f'{previous or "(empty)"}')
    return None


def _is_entry(fields: Mapping[str, object]) -> bool:
    """Return whether fields are those of a record, as far as they are read."""
    results = fields.get('results')
    return (fields.keys() >= _READ
            and fields['verdict'] in list(Verdict)
            and isinstance(results, list) and all(
                isinstance(result, dict)
                and isinstance(result.get('facts'), dict)
                and result.keys() >= {'step', 'outcome'}
                for result in results))


# -- Export of a device's ledger in the form of NVIDIA's check SEC21-05.
#
# The check (``BmGpuMemorySanitizationCheck`` of NVIDIA's ai-cloud-validation)
# reads one entry per machine. Here a GPU takes the place of a machine, since
# this plugin cleans GPUs one by one.


PLATFORM = 'openstack'

_AVAILABLE, _IN_USE, _SANITIZING = 'available', 'in_use', 'sanitizing'
_ERROR, _MAINTENANCE = 'error', 'maintenance'
_DELETED = 'decommissioned'

_S, _V = device_rules.DeviceState, Verdict

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


def export_sanitization(head: Head, records: Sequence[Record],
                        present: Present, later: Head | None = None,
                        ) -> dict[str, object]:
    """Return what the check reads, of one device.

    :param later: see chain_defect
    """
    defect = chain_defect(records, head, later)
    # Nothing can be said of a device whose records are not whole.
    machines = [] if defect else [_machine(
        head, [found.fields for found in records], present)]
    return {
        'success': defect is None, 'platform': PLATFORM, 'site_id': '',
        'machines_checked': len(machines), 'error': defect or '',
        'machines': machines}


def _machine(head: Head, entries: Sequence[Mapping[str, object]],
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
        result['outcome'] == cleaning.StepOutcome.PASSED
        and (result['step'] in cleaning.ABOUT_MEMORY
             or (result['step'] not in cleaning.SHIPPED
                 and result['facts'].get(cleaning.MEMORY) == 1))
        for result in results)
