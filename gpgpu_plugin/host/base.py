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
"""The contract of a backend: one way to partition and hand out hardware."""

from __future__ import annotations

import abc
import dataclasses

from oslo_config import cfg

from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import scanner
from gpgpu_plugin.objects import claim


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostDevice:
    """A device to work on, and under which holding of it."""

    assignment_uuid: str
    stable_id: str
    address: str

    @classmethod
    def of(cls, assignment: claim.Assignment) -> HostDevice:
        """The device of an assignment."""
        return cls(assignment_uuid=assignment.uuid,
                   stable_id=assignment.stable_id,
                   address=assignment.address)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleanVerdict:
    """Whether a device may go to another tenant, and what shows it."""

    passed: bool
    evidence: str


class Backend(abc.ABC):
    """Hands out devices of one host. Namespace ``gpgpu_plugin.backends``.

    Every method may be called again with the same argument, also after it
    failed or the process died half way: it compares before it acts.
    """

    @classmethod
    @abc.abstractmethod
    def for_host(cls, conf: cfg.ConfigOpts, host: str) -> Backend:
        """The backend of a nova-compute.

        :raises GpgpuException: the configuration is wrong
        """

    @abc.abstractmethod
    def scan(self) -> scanner.Scan:
        """Look at the host.

        :raises HostError: the host cannot be looked at
        """

    @abc.abstractmethod
    def discover(self, scan: scanner.Scan) -> tuple[pci.PCIFunction, ...]:
        """The functions that are reported: all that could be a GPU."""

    @abc.abstractmethod
    def changed(self) -> bool:
        """Whether the host differs from its last scan; cheap."""

    @abc.abstractmethod
    def prepare(self, device: HostDevice) -> None:
        """Make the device ready for a guest.

        :raises HostError: the hardware did not do what it was asked
        :raises HostNotReady: the device was not touched
        """

    @abc.abstractmethod
    def release(self, device: HostDevice) -> None:
        """Take prepare back.

        :raises HostError: the hardware did not do what it was asked
        """

    @abc.abstractmethod
    def clean(self, device: HostDevice) -> CleanVerdict:
        """Make the device fit for another tenant; in doubt it is not.

        :raises HostNotReady: it says nothing about the device
        """

    @abc.abstractmethod
    def guest_addresses(self, device: HostDevice) -> tuple[str, ...]:
        """Addresses of the functions that a guest gets with the device, the
        device's own first.

        :raises HostError: the device is not there
        """
