# SPDX-License-Identifier: Apache-2.0
"""Records of Nova about PCI devices that it assigned to guests.

They outlive ``[pci] device_spec``: Nova keeps the record of an assigned device
that the option no longer covers until its guest is gone, running or stopped.
"""

from __future__ import annotations

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.objects import fields

from gpgpu_plugin.host.discovery import scanner

_FREE = (fields.PciDeviceStatus.AVAILABLE, fields.PciDeviceStatus.REMOVED,
         fields.PciDeviceStatus.DELETED)


class NovaPCIRecords:
    """GPUs of one compute node that Nova's PCI tracker has in use.

    :param node_uuid: UUID of the compute node
    """

    def __init__(self, node_uuid: str) -> None:
        self._node_uuid = node_uuid
        self._reported: dict[str, str] = {}

    def owners(self, scan: scanner.Scan) -> dict[str, str]:
        """Return how Nova has functions of this host in use, by address.

        A GPU is in use if a VF or a companion of it is.

        :param scan: of the whole host
        :raises Exception: Nova's database did not answer
        """
        used = self._used()
        reasons = {function.address: reason for function in scan.functions
                   if (reason := used.get(function.address)) is not None}
        self._reported = dict(reasons)
        by_id = {function.id: function for function in scan.functions}
        found = dict(reasons)
        for function in scan.functions:
            if function.address in reasons and function.pf in by_id:
                found.setdefault(by_id[function.pf].address,
                                 reasons[function.address])
            for companion in function.companions:
                if companion in reasons:
                    found.setdefault(function.address, reasons[companion])
        return found

    def changed(self) -> bool:
        """Return whether Nova no longer has a GPU in use that was reported.

        Ask Nova's database only if there was one.
        """
        if not self._reported:
            return False
        used = self._used()
        return any(used.get(address) != reason
                   for address, reason in self._reported.items())

    def _used(self) -> dict[str, str]:
        context = nova_context.get_admin_context()
        try:
            node = objects.ComputeNode.get_by_uuid(context, self._node_uuid)
        except nova_exception.ComputeHostNotFound:
            # It has never run.
            return {}
        return {
            device.address: _reason(device)
            for device in objects.PciDeviceList.get_by_compute_node(
                context, node.id)
            if device.status not in _FREE}


def _reason(device: objects.PciDevice) -> str:
    if device.instance_uuid is None:
        # A VF whose PF is in use, or the reverse.
        return 'Nova ([pci] device_spec, in use)'
    return (f'Nova ([pci] device_spec, assigned to instance '
            f'{device.instance_uuid})')
