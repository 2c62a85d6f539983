# SPDX-License-Identifier: Apache-2.0
"""Events, usage and notifications."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import typing

from gpgpu_plugin.objects import codec


@dataclasses.dataclass(frozen=True, kw_only=True)
class EventFilter:
    """Conditions on events; what is None does not matter.

    :ivar device: UUID
    :ivar instance: UUID
    :ivar request: request ID, ``req-`` and a UUID
    :ivar since: no older ones, UTC without a zone
    :ivar until: only older ones, UTC without a zone
    """

    host: str | None = None
    device: str | None = None
    instance: str | None = None
    project: str | None = None
    kind: str | None = None
    request: str | None = None
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EventInfo:
    """An event.

    :ivar at: ISO 8601, UTC
    :ivar kind: a domain.event.Kind
    :ivar actor: who caused it
    :ivar request_id: of the user's request to Nova, or of the call
    :ivar reason: name of the reason of a refusal
    :ivar count: number of equal refusals that this is
    """

    id: int
    at: str
    kind: str
    actor: str
    host: str | None = None
    device_uuid: str | None = None
    assignment_uuid: str | None = None
    instance_uuid: str | None = None
    project_id: str | None = None
    request_id: str | None = None
    reason: str | None = None
    count: int = 1
    detail: str | None = None

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return str(self.id)


# -- Usage of devices: what operators ask for, list, sum and export.


class UsageKey(enum.StrEnum):
    """Key that usage can be summed by."""

    PROJECT = 'project'
    USER = 'user'
    INSTANCE = 'instance'
    FLAVOR = 'flavor'
    HOST = 'host'
    VARIANT = 'variant'
    VGPU_TYPE = 'vgpu_type'


@dataclasses.dataclass(frozen=True, kw_only=True)
class UsageQuery:
    """Filter of usage; a field that is None does not filter.

    :ivar since: beginning of the period (UTC, without a zone)
    :ivar until: its end, which is not part of it
    """

    project_id: str | None = None
    user_id: str | None = None
    host: str | None = None
    instance_uuid: str | None = None
    variant: str | None = None
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class UsageInfo:
    """Usage of one device by one instance.

    :ivar uuid: of the assignment, which identifies the usage for ever
    :ivar flavor: name of the flavor at the time of the claim
    :ivar serial: serial number of the GPU
    :ivar began_at: ISO 8601, UTC
    :ivar ended_at: as ``began_at``; None: it goes on
    :ivar seconds: the part within the period that was asked for
    """

    uuid: str
    project_id: str
    user_id: str
    instance_uuid: str
    flavor: str
    host: str
    device_uuid: str
    address: str
    serial: str | None
    variant: str | None
    vgpu_type: str
    resource_class: str
    began_at: str
    ended_at: str | None
    seconds: int

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return self.uuid


@dataclasses.dataclass(frozen=True, kw_only=True)
class UsageSum:
    """Sum of the usage that has the same values.

    :ivar values: those of the keys that it is summed by, in their order;
        None: unknown
    :ivar usages: number of usages
    :ivar seconds: their parts within the period
    """

    values: tuple[str | None, ...]
    usages: int
    seconds: int

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return json.dumps(self.values)


# -- Payloads of notifications, in the form that Nova's versioned ones have.
#
# A field that is added raises the minor version, any other change the major
# one. A test keeps a fingerprint of the fields of each version.


NOTIFICATION_NAMESPACE = 'gpgpu'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Payload:
    """Fields that all payloads have.

    :cvar VERSION: of the fields
    :ivar request_id: of the user's request to Nova, or of the call that caused
        the notification; None: no call did
    """

    VERSION: typing.ClassVar[str]

    request_id: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssignmentPayload(Payload):
    """Usage of one device by one instance.

    :ivar uuid: of the assignment, which identifies the usage for ever
    :ivar flavor: name of the flavor at the time of the claim
    :ivar address: PCI address; of a vGPU that is an mdev, that of its GPU
    :ivar serial: serial number of the GPU
    :ivar began_at: ISO 8601, UTC
    :ivar ended_at: as ``began_at``; None: it goes on
    :ivar seconds: of use: all of it at the end, 0 at the start, and the part
        within the audit period for ``exists``
    """

    VERSION: typing.ClassVar[str] = '1.0'

    uuid: str
    instance_uuid: str
    project_id: str
    user_id: str
    flavor: str
    host: str
    device_uuid: str
    address: str
    serial: str | None
    variant: str | None
    vgpu_type: str
    resource_class: str
    began_at: str
    ended_at: str | None
    seconds: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssignmentExistsPayload(AssignmentPayload):
    """Usage of one device by one instance within an audit period.

    :ivar audit_period_beginning: ISO 8601, UTC
    :ivar audit_period_ending: as ``audit_period_beginning``; it is not part of
        the period
    """

    VERSION: typing.ClassVar[str] = '1.0'

    audit_period_beginning: str
    audit_period_ending: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicePayload(Payload):
    """A device after a change.

    :ivar variant: None: it is in no group
    :ivar kind: a domain.device.DeviceKind
    :ivar serial: serial number that the device reports itself
    :ivar vgpu_type: of the vGPU that is there
    :ivar old_state: None: the state is the same as before
    :ivar state: see domain.device.own_state
    :ivar reason: why it is held, unmanaged or waits
    :ivar generation: counts the changes of its state and of its own holds
    """

    VERSION: typing.ClassVar[str] = '1.0'

    uuid: str
    host: str
    address: str
    stable_id: str
    kind: str
    variant: str | None
    serial: str | None
    vgpu_type: str | None
    old_state: str | None
    state: str
    enabled: bool
    present: bool
    reason: str | None
    generation: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefusalPayload(Payload):
    """A request of an instance that hosts were refused for.

    :ivar refused_by: ``gpgpu-conductor``, ``placement``, or the name of a
        scheduler filter
    :ivar host: None: several were refused at once
    :ivar reason: the most frequent one
    :ivar hosts_refused: number of hosts by the name of the reason; empty:
        Placement had no candidate, and does not say why
    :ivar hosts_left: number of hosts that were not refused; None: not known
    :ivar detail: the numbers in words
    """

    VERSION: typing.ClassVar[str] = '1.0'

    refused_by: str
    instance_uuid: str
    project_id: str | None
    host: str | None
    reason: str
    hosts_refused: dict[str, int]
    hosts_left: int | None
    detail: str | None


def notification_primitive(payload: Payload) -> dict[str, object]:
    """Return a payload as it is sent."""
    return {
        'gpgpu_object.name': type(payload).__name__,
        'gpgpu_object.namespace': NOTIFICATION_NAMESPACE,
        'gpgpu_object.version': payload.VERSION,
        'gpgpu_object.data': codec.to_primitive(payload)}
