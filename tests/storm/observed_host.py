# SPDX-License-Identifier: Apache-2.0
"""Host backend that records its work in the ground truth."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host import base
from gpgpu_plugin.host.discovery import scanner
from tests.storm import ground_truth


class ObservedHost(base.ComputeHost):
    """Host backend that records in the ground truth what it does.

    :param owner: returns the instance of an assignment
    :param pause: called in the middle of each cleaning
    """

    def __init__(self, host: base.ComputeHost, truth: ground_truth.GroundTruth,
                 owner: Callable[[str], str],
                 pause: Callable[[], None] = lambda: None) -> None:
        self._host = host
        self._truth = truth
        self._owner = owner
        self._pause = pause

    @classmethod
    def for_host(cls, conf: object, host: str) -> base.ComputeHost:
        """Refuse: it is created around another host."""
        raise NotImplementedError

    def prepare(self, device: base.HostDevice) -> None:
        self._truth.prepare(
            device.stable_id, self._owner(device.assignment_uuid))
        self._host.prepare(device)

    def release(self, device: base.HostDevice) -> None:
        self._host.release(device)

    def clean(self, device: base.HostDevice) -> base.CleanVerdict:
        try:
            with self._truth.cleaning(device.stable_id) as cleaned:
                self._pause()
                result = self._host.clean(device)
                if result.passed:
                    cleaned()
                return result
        except ground_truth.DoubleUse as exc:
            raise exception.HostError(
                path=device.address, reason='a guest runs with it') from exc

    def give_back(self, device: base.HostDevice) -> None:
        self._host.give_back(device)

    def attachment(self, device: base.HostDevice) -> base.Attachment:
        return self._host.attachment(device)

    def make_vfs(self, busy: Collection[str],
                 refused: Callable[[Sequence[str]], Collection[str]]
                 = lambda gpus: ()) -> None:
        self._host.make_vfs(busy, refused)

    def lacks_vfs(self) -> bool:
        return self._host.lacks_vfs()

    def driver_capacity(self, devices: Iterable[base.HostDevice],
                        ) -> dict[str, vgpu.DriverCapacity]:
        return self._host.driver_capacity(devices)

    def inspect(self) -> base.Inspection:
        return self._host.inspect()

    def scan(self) -> scanner.Scan:
        return self._host.scan()

    def discover(self, scan: scanner.Scan) -> tuple[pci.PCIFunction, ...]:
        return self._host.discover(scan)

    def identity(self, scan: scanner.Scan) -> host_rules.MachineIdentity:
        return self._host.identity(scan)

    def changed(self) -> bool:
        return self._host.changed()
