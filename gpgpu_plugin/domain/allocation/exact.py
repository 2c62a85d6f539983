# SPDX-License-Identifier: Apache-2.0
"""Exact devices, which a scheduler hint names instead of a flavor."""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Iterable
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.allocation import request as request_mod

HINT = 'gpgpu_device'
"""The scheduler hint; each of its values names one device."""

MAX_DEVICES = 64
"""Devices that one instance can name."""

_MAX_NAME = 255
"""Characters of a host's name, as in Nova."""

_SHORT_ADDRESS = re.compile(r'[0-9a-f]{2}:[01][0-9a-f]\.[0-7]', re.IGNORECASE)
_PLACE = re.compile(
    rf'(?P<host>\S+?)(?::|\s+)(?P<address>(?:[0-9a-f]{{4,16}}:)?'
    rf'{_SHORT_ADDRESS.pattern})', re.IGNORECASE)


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class DeviceName:
    """Name of one device: its UUID, or its host and PCI address there.

    :ivar uuid: empty: the device is named by its place
    """

    uuid: str = ''
    host: str = ''
    address: str = ''

    def __str__(self) -> str:
        return self.uuid or f'{self.host} {self.address}'


def parse(values: Sequence[str]) -> tuple[DeviceName, ...]:
    """Read the values of the hint, or names that it returned.

    :raises Invalid: there are none or too many, one has another form, or two
        of them are equal
    """
    if not 0 < len(values) <= MAX_DEVICES:
        raise exception.Invalid(
            field=f'number of devices in scheduler hint {HINT}',
            value=len(values), expected=f'1 to {MAX_DEVICES}')
    names = tuple(map(_parse, values))
    for number, name in enumerate(names):
        if name in names[:number]:
            raise exception.Invalid(
                field=f'scheduler hint {HINT}', value=str(name),
                expected='each device once')
    return names


def _parse(value: str) -> DeviceName:
    try:
        return DeviceName(uuid=str(uuid.UUID(value.strip())))
    except ValueError:
        pass
    place = _PLACE.fullmatch(value.strip())
    if (place is None or pci.find_addresses(value.strip()) == [value.strip()]
            or len(place['host']) > _MAX_NAME or not value.isprintable()):
        raise exception.Invalid(
            field=f'scheduler hint {HINT}', value=repr(value[:_MAX_NAME]),
            expected='the UUID of a device, or its host and PCI address, such '
                     'as "compute1 0000:3b:00.0" or compute1:0000:3b:00.0')
    address = place['address']
    if _SHORT_ADDRESS.fullmatch(address):
        # As lspci prints it.
        address = f'0000:{address}'
    return DeviceName(host=place['host'],
                      address=str(pci.PCIAddress.parse(address)))


def of_hint(value: str | Sequence[str] | None) -> tuple[DeviceName, ...]:
    """Return the devices that the scheduler hint names.

    :param value: None: there is no such hint
    :raises Invalid: as ``parse``
    """
    if value is None:
        return ()
    return parse([value] if isinstance(value, str) else value)


def refusal(names: Iterable[DeviceName], reason: request_mod.Reason,
            why: str) -> request_mod.Unsatisfiable:
    """Return the refusal of devices, with their names before the reason."""
    return request_mod.Unsatisfiable(request_mod.Refusal(
        reason=reason, detail=f'{", ".join(map(str, names))}: {why}'))


def not_allowed(project_id: str | None) -> request_mod.Unsatisfiable:
    """Return the refusal of a project that may not name devices."""
    return request_mod.Unsatisfiable(request_mod.Refusal(
        reason=request_mod.Reason.EXACT_DEVICES_NOT_ALLOWED,
        detail=f'project {project_id} is not in [gpgpu_conductor] '
               f'exact_device_projects of gpgpu-conductor, so that scheduler '
               f'hint {HINT} is refused; request GPUs by a flavor'))


def mixed(request: request_mod.Request) -> request_mod.Unsatisfiable:
    """Return the refusal of a hint together with a flavor for GPUs."""
    return request_mod.Unsatisfiable(request_mod.Refusal(
        reason=request_mod.Reason.EXACT_DEVICES_AND_FLAVOR,
        detail=f'the flavor requests {request_mod.describe(request)} and '
               f'scheduler hint {HINT} names devices; use either of them'))


def elsewhere(names: Iterable[object]) -> request_mod.Unsatisfiable:
    """Return the refusal of a move away from named devices."""
    return request_mod.Unsatisfiable(request_mod.Refusal(
        reason=request_mod.Reason.EXACT_DEVICE_ELSEWHERE,
        detail=f'{", ".join(map(str, names))}: the instance names devices of '
               f'another host and cannot leave it'))
