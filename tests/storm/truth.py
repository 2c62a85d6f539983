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
"""Truth about the GPUs of one host, as its hardware and guests have it.

It is kept in a file beside the host's nova-compute, which may be killed at any
moment: guests go on then. Neither gpgpu-conductor nor the book of the host has
any influence on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator

from gpgpu_plugin import exception
from gpgpu_plugin.domain import machine
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import driver_capacity
from gpgpu_plugin.host import base
from gpgpu_plugin.host.discovery import scanner


class Doubled(Exception):
    """A GPU was to be used by two instances; names it and its history."""


@dataclasses.dataclass
class Device:
    """One GPU.

    :ivar touched: last instance for which it was prepared and after which it
        was not cleaned
    :ivar guest: instance whose guest runs with it
    :ivar cleaning: whether it is being cleaned now
    """

    touched: str | None = None
    guest: str | None = None
    cleaning: bool = False
    history: list[str] = dataclasses.field(default_factory=list)


class Truth:
    """Truth about one host; thread-safe.

    :param folder: of the host; what is in it outlives the process
    :ivar counts: how often something happened, by name
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._path = folder / 'truth'
        self._alarm = folder / 'doubled'
        self._lock = threading.RLock()
        self.devices: dict[str, Device] = {}
        self.counts: dict[str, int] = {}
        self._log: int | None = None
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                self._replay(*json.loads(line))
        for device in self.devices.values():
            # Whoever cleaned it is dead.
            device.cleaning = False

    # -- what happens -------------------------------------------------------

    def count(self, what: str) -> None:
        """Count what happened to a message or a claim."""
        with self._lock:
            self._write('count', what, '')

    def prepare(self, stable_id: str, instance: str) -> None:
        """Note that a GPU is being prepared for an instance.

        :raises Doubled: another one uses it or did, or it is being cleaned
        """
        with self._lock:
            device = self._device(stable_id)
            if device.cleaning or {device.touched, device.guest} - {
                    None, instance}:
                self._alarmed(stable_id, f'prepared for {instance}')
            self._write('prepare', stable_id, instance)

    def start(self, instance: str, stable_ids: Iterable[str]) -> None:
        """Start the guest of an instance.

        :raises Doubled: a GPU is not prepared for it
        """
        with self._lock:
            for stable_id in stable_ids:
                device = self._device(stable_id)
                if device.cleaning or device.touched != instance or (
                        device.guest not in (None, instance)):
                    self._alarmed(stable_id, f'given to guest {instance}')
                self._write('start', stable_id, instance)

    def end(self, instance: str) -> None:
        """End the guest of an instance, if it runs."""
        with self._lock:
            for stable_id in self.of_guest(instance):
                self._write('end', stable_id, instance)

    @contextlib.contextmanager
    def cleaning(self, stable_id: str) -> Iterator[Callable[[], None]]:
        """Note that a GPU is being cleaned meanwhile.

        :returns: a function that notes that nothing of its user is left
        :raises Doubled: a guest runs with it
        """
        with self._lock:
            if self._device(stable_id).guest is not None:
                self._alarmed(stable_id, 'cleaned')
            self._write('clean', stable_id, '')
        try:
            yield lambda: self._write('cleaned', stable_id, '')
        finally:
            self._write('clean ended', stable_id, '')

    # -- what is ------------------------------------------------------------

    def of_guest(self, instance: str) -> set[str]:
        """Return the stable ids of the GPUs of a guest; empty: none runs."""
        with self._lock:
            return {stable_id for stable_id, device in self.devices.items()
                    if device.guest == instance}

    def guests(self) -> dict[str, set[str]]:
        """Return the stable ids of the GPUs of all guests, by instance."""
        with self._lock:
            return {device.guest: self.of_guest(device.guest)
                    for device in self.devices.values()
                    if device.guest is not None}

    def used(self) -> set[str]:
        """Return the stable ids of GPUs in guests, or not cleaned since."""
        with self._lock:
            return {stable_id for stable_id, device in self.devices.items()
                    if device.guest or device.touched}

    # -- the file -----------------------------------------------------------

    def _device(self, stable_id: str) -> Device:
        return self.devices.setdefault(stable_id, Device())

    def _write(self, what: str, stable_id: str, instance: str) -> None:
        with self._lock:
            if self._log is None:
                self._log = os.open(
                    self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            event = (round(time.time(), 3), os.getpid(), what, stable_id,
                     instance)
            # In one piece: the process may be killed at any moment.
            os.write(self._log, f'{json.dumps(event)}\n'.encode())
            self._replay(*event)

    def _replay(self, at: float, pid: int, what: str, stable_id: str,
                instance: str) -> None:
        if what == 'count':
            self.counts[stable_id] = self.counts.get(stable_id, 0) + 1
            return
        device = self._device(stable_id)
        device.history.append(f'{at:.3f} process {pid}: {what} {instance}')
        if what == 'prepare':
            device.touched = instance
        elif what == 'start':
            device.guest = instance
        elif what == 'end':
            device.guest = None
        elif what == 'cleaned':
            device.touched = None
        if what.startswith('clean'):
            device.cleaning = what == 'clean'

    def _alarmed(self, stable_id: str, what: str) -> None:
        device = self._device(stable_id)
        text = '\n    '.join([
            f'{stable_id} was {what} at {time.time():.3f}, and is in guest '
            f'{device.guest}, touched by {device.touched}, '
            f'{"being cleaned" if device.cleaning else "not being cleaned"}',
            *device.history[-20:]])
        with self._alarm.open('a', encoding='utf-8') as file:
            file.write(f'{text}\n')
        raise Doubled(text)


class WatchedHost(base.Host):
    """A host that lets its truth know what it does.

    :param owner: returns the instance of an assignment
    :param pause: called in the middle of each cleaning
    """

    def __init__(self, host: base.Host, truth: Truth,
                 owner: Callable[[str], str],
                 pause: Callable[[], None] = lambda: None) -> None:
        self._host = host
        self._truth = truth
        self._owner = owner
        self._pause = pause

    @classmethod
    def for_host(cls, conf: object, host: str) -> base.Host:
        """Return nothing: it is made around another host."""
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
                verdict = self._host.clean(device)
                if verdict.passed:
                    cleaned()
                return verdict
        except Doubled as exc:
            raise exception.HostError(
                path=device.address, reason='in a guest') from exc

    def attachment(self, device: base.HostDevice) -> base.Attachment:
        return self._host.attachment(device)

    def make_vfs(self, busy: Collection[str]) -> None:
        self._host.make_vfs(busy)

    def driver_capacity(self, devices: Iterable[base.HostDevice],
                        ) -> dict[str, driver_capacity.DriverCapacity]:
        return self._host.driver_capacity(devices)

    def scan(self) -> scanner.Scan:
        return self._host.scan()

    def discover(self, scan: scanner.Scan) -> tuple[pci.PCIFunction, ...]:
        return self._host.discover(scan)

    def identity(self, scan: scanner.Scan) -> machine.MachineIdentity:
        return self._host.identity(scan)

    def changed(self) -> bool:
        return self._host.changed()
