#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""The contracts of the host layer.

A host is looked at as a whole; a backend is one way to partition and hand
out its hardware.
"""

from __future__ import annotations

import abc
import dataclasses
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable

from oslo_config import cfg

from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import vgpu_type
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.vfio import baseline
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.objects import claim


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostDevice:
    """A device to work on, and under which holding of it.

    :ivar assignment_uuid: the holding; when cleaning, the last one
    :ivar address: of the function, or of the card that an mdev is on
    :ivar vgpu_type: name of what is carved there; None: the whole card
    :ivar placement_id: where on the card it is to be; None: anywhere
    :ivar cleaning: names one cleaning
    """

    assignment_uuid: str
    stable_id: str
    address: str
    vgpu_type: str | None = None
    placement_id: int | None = None
    cleaning: str | None = None

    @classmethod
    def of(cls, assignment: claim.Assignment) -> HostDevice:
        """The device of an assignment."""
        return cls(assignment_uuid=assignment.uuid,
                   stable_id=assignment.stable_id,
                   address=assignment.address,
                   vgpu_type=None if assignment.vgpu_type
                   == naming.PASSTHROUGH else assignment.vgpu_type,
                   placement_id=assignment.placement_id)

    @classmethod
    def to_clean(cls, task: claim.CleanTask) -> HostDevice:
        """The device of a cleaning."""
        return cls(assignment_uuid=task.assignment_uuid or '',
                   stable_id=task.stable_id, address=task.address,
                   vgpu_type=task.vgpu_type, cleaning=task.token)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleanVerdict:
    """Whether a device may go to another tenant, and what shows it."""

    passed: bool
    evidence: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attachment:
    """What a guest gets of a device: PCI functions or an mdev.

    :ivar functions: addresses, the device's own first
    :ivar mdev: its UUID
    """

    functions: tuple[str, ...] = ()
    mdev: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Access:
    """What backends work on.

    :ivar is_designated: whether a function stays bound to vfio-pci between
        guests
    :ivar baselines: what devices were before their guests
    """

    sysfs: sysfs_mod.Sysfs
    binder: binding.Binder
    is_designated: Callable[[pci.PCIFunction], bool]
    baselines: baseline.Baselines


class Devices(abc.ABC):
    """What is done with one device.

    Every method may be called again with the same argument, also after it
    failed or the process died half way: it compares before it acts.
    """

    @abc.abstractmethod
    def prepare(self, device: HostDevice) -> None:
        """Make the device ready for a guest.

        :raises HostError: the hardware did not do what it was asked
        :raises HostNotReady: the device was not touched; NoDriverCapacity:
            since its card makes no more of the type
        """

    @abc.abstractmethod
    def release(self, device: HostDevice) -> None:
        """Take prepare back; what another holding made stays.

        :raises HostError: the hardware did not do what it was asked
        """

    @abc.abstractmethod
    def clean(self, device: HostDevice) -> CleanVerdict:
        """Make the device fit for another tenant; in doubt it is not.

        :raises HostNotReady: it says nothing about the device
        """

    @abc.abstractmethod
    def attachment(self, device: HostDevice) -> Attachment:
        """What a guest gets with the device.

        :raises HostError: the device is not there
        """


class Backend(Devices):
    """One way to hand out hardware. Namespace ``gpgpu_plugin.backends``.

    :cvar order: of several that handle a device, the lowest does it
    """

    order: typing.ClassVar[int] = 100

    def __init__(self, access: Access) -> None:
        self.access = access

    @abc.abstractmethod
    def handles(self, device: HostDevice) -> bool:
        """Whether the device, as it is now, is handed out this way."""


class Host(Devices):
    """A host with its devices. Namespace ``gpgpu_plugin.hosts``."""

    @classmethod
    @abc.abstractmethod
    def for_host(cls, conf: cfg.ConfigOpts, host: str) -> Host:
        """The host of a nova-compute.

        :raises GpgpuException: the configuration is wrong
        """

    @abc.abstractmethod
    def make_vfs(self, busy: Collection[str]) -> None:
        """Give each card the VFs that the configuration wants it to have,
        where it has none. Never raises.

        :param busy: stable ids of the cards that are left alone
        """

    @abc.abstractmethod
    def driver_capacity(self, devices: Iterable[HostDevice],
                  ) -> dict[str, vgpu_type.DriverCapacity]:
        """What can be carved out of the cards of vGPUs, now that something
        was made or removed there. Never raises.

        :returns: by the card's stable id; cards that are whole, or whose
            driver does not tell, are left out
        """

    @abc.abstractmethod
    def scan(self) -> scanner.Scan:
        """Look at the host.

        :raises HostError: the host cannot be looked at
        """

    @abc.abstractmethod
    def discover(self, scan: scanner.Scan) -> tuple[pci.PCIFunction, ...]:
        """The functions that are reported: all that could be a GPU, and all
        that vGPUs can be carved out of."""

    @abc.abstractmethod
    def changed(self) -> bool:
        """Whether the host differs from its last scan; cheap."""
