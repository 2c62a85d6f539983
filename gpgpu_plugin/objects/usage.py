# SPDX-License-Identifier: Apache-2.0
"""Usage of devices: what operators ask for, list, sum and export."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json


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
    """Usage that is asked for; what is None does not matter.

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
