# SPDX-License-Identifier: Apache-2.0
"""The part of the conductor's RPC contract that takes devices out and back.

See rpc.conductor_contract, which has the other methods.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.objects import admin
from gpgpu_plugin.rpc import caller

_Context = gpgpu_context.RequestContext


class Devices(typing.Protocol):
    """Methods for operators: devices that are faulty, suspect or exchanged."""

    @caller.operators(once=True)
    def device_quarantine(self, ctxt: _Context, *, device: str, reason: str,
                          ) -> admin.DeviceInfo:
        """Withdraw a device; of a GPU that has VFs, all of these.

        An assigned one stays assigned, and is quarantined when its assignment
        ends.

        :param reason: one line
        :raises NotFound: no device has this UUID
        :raises Invalid: the reason is empty or has several lines
        :raises Conflict: the device is quarantined or retired already, or is
            an mdev row
        """

    @caller.operators(once=True)
    def device_clean(self, ctxt: _Context, *, device: str,
                     ) -> admin.DeviceInfo:
        """Clean a free or quarantined device; of a GPU with VFs, all of these.

        A device that is dirty or is being cleaned stays so.

        :raises NotFound: no device has this UUID
        :raises Conflict: an instance has the device or a vGPU of it, another
            device was found in its place, or it is unmanaged, retired or an
            mdev row
        """

    @caller.operators(once=True)
    def device_accept(self, ctxt: _Context, *, devices: Sequence[str],
                      reason: str) -> tuple[admin.DeviceInfo, ...]:
        """Take new devices of one host as clean, all or none.

        :param devices: UUIDs; a GPU that has VFs stands for these
        :param reason: one line
        :raises NotFound: the host has no device with one of these UUIDs
        :raises Invalid: as for device_quarantine, or no device is named
        :raises Conflict: a device is not dirty, not new or an mdev row
        """

    @caller.operators(once=True)
    def device_retire(self, ctxt: _Context, *, device: str,
                      reason: str | None) -> admin.DeviceInfo:
        """Take a GPU with its VFs out of lists, offers and counts.

        If its host reports it again, it stays retired.

        :param reason: one line
        :raises NotFound: no device has this UUID
        :raises Invalid: as for device_quarantine
        :raises Conflict: an instance has the GPU or a vGPU of it, or it is
            retired already, or is a VF or an mdev row
        """

    @caller.operators(once=True)
    def device_replace(self, ctxt: _Context, *, device: str,
                       ) -> admin.DeviceInfo:
        """Retire a GPU, and accept the other card in its place.

        The other card is dirty. If the host has not reported it yet, it is
        accepted when the host does.

        :param device: the GPU, or the other card, which is quarantined
        :returns: the other card; the GPU if the other is awaited
        :raises NotFound: no device has this UUID
        :raises Conflict: an instance has the GPU or a vGPU of it, or it was
            replaced already, or is a VF or an mdev row
        """
