# SPDX-License-Identifier: Apache-2.0
"""The part of the conductor's RPC contract that takes devices out and back.

See rpc.conductor_contract, which has the other methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.objects import admin
from gpgpu_plugin.rpc import caller
from gpgpu_plugin.rpc import pages

_Context = gpgpu_context.RequestContext


class Devices:
    """Methods for operators: hold, clean, accept and replace devices."""

    @caller.operators()
    def hold_list(self, ctxt: _Context, host: str | None = None,
                  kind: str | None = None, limit: int = pages.ALL,
                  marker: str | None = None) -> tuple[admin.HoldInfo, ...]:
        """Return a page of holds, the oldest first.

        :param kind: one of domain.hold.KINDS
        :param limit: as for vgpu_type_list
        :param marker: id of the hold before the first one
        :raises NotFound: no such host
        :raises Invalid: there is no such kind, or the marker is no number
        """

    @caller.operators(once=True)
    def hold_add(self, ctxt: _Context, device: str, kind: str,
                 reason: str | None = None) -> admin.DeviceInfo:
        """Hold a device; a GPU with its VFs and the vGPUs on it.

        An assigned one stays assigned. A retired one leaves lists, offers and
        counts, and stays retired if its host reports it again.

        :param kind: one of domain.hold.BY_OPERATORS
        :param reason: one line; a quarantine needs one
        :raises NotFound: no device has this UUID
        :raises Invalid: the reason is empty or has several lines, or operators
            set no such kind
        :raises Conflict: it is an mdev row; it is to be quarantined or retired
            and is so already; or it is to be retired, and an instance has the
            GPU or a vGPU of it, or it is a VF
        """

    @caller.operators(once=True)
    def hold_remove(self, ctxt: _Context, device: str, kinds: Sequence[str],
                    ) -> admin.DeviceInfo:
        """Remove holds of a device; it is cleaned if one withdrew it.

        A GPU stands for its VFs.

        :param kinds: each a domain.hold.HoldKind
        :raises NotFound: no device has this UUID
        :raises Invalid: there is no such kind
        :raises Conflict: the device has none of the named kinds other than
            ``disabled``, a guest has a vGPU on it, another card has the place
            of a retired one, or ``disabled`` is a hold of its GPU or named for
            an mdev row; then nothing is removed
        """

    @caller.operators(once=True)
    def device_release(self, ctxt: _Context, device: str,
                       ) -> admin.DeviceInfo:
        """Have a device cleaned; of a GPU with VFs, all of these.

        If holds withdraw the device, they are removed, as by hold_remove,
        also if an instance has it. A device that is dirty or is being cleaned
        stays so.

        :raises NotFound: no device has this UUID
        :raises Conflict: as for hold_remove, or nothing withdraws the device,
            and an instance has it or a vGPU of it, or it is unmanaged or an
            mdev row
        """

    @caller.operators(once=True)
    def device_accept(self, ctxt: _Context, devices: Sequence[str],
                      reason: str) -> tuple[admin.DeviceInfo, ...]:
        """Take new devices of one host as clean, all or none.

        :param devices: UUIDs; a GPU that has VFs stands for these
        :param reason: one line
        :raises NotFound: the host has no device with one of these UUIDs
        :raises Invalid: as for hold_add, or no device is named
        :raises Conflict: a device is not dirty, not new or an mdev row
        """

    @caller.operators(once=True)
    def device_replace(self, ctxt: _Context, device: str) -> admin.DeviceInfo:
        """Retire a GPU, and accept the other card in its place.

        The other card is dirty. If the host has not reported it yet, it is
        accepted when the host does.

        :param device: the GPU, or the other card, which is quarantined
        :returns: the other card; the GPU if the other is awaited
        :raises NotFound: no device has this UUID
        :raises Conflict: an instance has the GPU or a vGPU of it, or it was
            replaced already, or is a VF or an mdev row
        """
