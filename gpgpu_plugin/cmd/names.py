# SPDX-License-Identifier: Apache-2.0
"""Names of devices and servers on the command line."""

from __future__ import annotations

import argparse
import importlib
import typing
import uuid
from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.objects import admin
from gpgpu_plugin.rpc import conductor_client

if typing.TYPE_CHECKING:
    import types


def add_device_argument(parser: argparse.ArgumentParser,
                        more: str = '') -> None:
    """Add the argument that names one device.

    :param more: for the help, what else the device may be
    """
    parser.add_argument(
        'device', nargs='+', metavar='DEVICE',
        help=f'UUID of the device, or the name of its host and its PCI '
             f'address there{more}')


def device_uuid_of(api: conductor_client.ConductorAPI,
                   words: Sequence[str]) -> str:
    """Return the UUID of the device that an argument names.

    :raises Invalid: it is neither a UUID nor a host and a PCI address
    :raises NotFound: the host reported no device at this address
    :raises Conflict: it reported several, none of which is there now
    """
    if len(words) == 1:
        return words[0]
    if len(words) != 2:
        raise exception.Invalid(
            field='device', value=' '.join(words),
            expected='a UUID, or a host and a PCI address')
    host, address = words[0], _address(words[1])
    found = [device for device in api.device_list(
                 gpgpu_context.admin(), host=host, include_retired=True)
             if device.kind == device_rules.DeviceKind.PCI
             and device.address == address]
    return _only(found, f'{address} on host {host}').uuid


def _address(text: str) -> str:
    """Return a PCI address; lspci leaves out domain 0000.

    :raises Invalid: it is none
    """
    try:
        return str(pci.PCIAddress.parse(
            text if text.count(':') > 1 else f'0000:{text}'))
    except exception.Invalid as exc:
        # The value as the operator wrote it.
        raise exception.Invalid(
            field=exc.kwargs['field'], value=text,
            expected=exc.kwargs['expected']) from None


def _only(found: Sequence[admin.DeviceInfo], name: str) -> admin.DeviceInfo:
    """Return the device that is there, or else the one that was.

    A retired one counts if no other was there since.
    """
    left = [device for device in found
            if device.state != device_rules.RETIRED] or [
                device for device in found if device.replaced_by is None]
    devices = [device for device in left if device.present] or left
    if not devices:
        raise exception.NotFound(kind='device', name=name)
    if len(devices) > 1:
        raise exception.Conflict(
            kind='device', name=name,
            reason='these devices were there, name one by its UUID: '
                   + ', '.join(device.uuid for device in devices))
    return devices[0]


# -- Names of servers on the command line: a UUID, or the name that Nova has.
#
# A UUID needs no Nova. Only a name loads openstacksdk, which takes a second.


HELP = 'UUID or name of the server'

_LOOKUP = 'gpgpu_plugin.cmd.cloud'


def server_uuid_of(command: base.Command, text: str) -> str:
    """Return the UUID of a server, as Nova writes it.

    :raises NotFound: Nova has no server of this name
    :raises Conflict: Nova has several, or does not answer
    """
    try:
        return str(uuid.UUID(text))
    except ValueError:
        pass
    lookup: types.ModuleType = importlib.import_module(_LOOKUP)
    found: str = lookup.server_uuid(command.manage, text)
    return found


def optional_server_uuid(command: base.Command,
                         text: str | None) -> str | None:
    """Return the UUID of a server that may be left out."""
    return server_uuid_of(command, text) if text else None
