# SPDX-License-Identifier: Apache-2.0
"""Ground truth about the GPUs of one host: who really uses them.

It is stored in a file that outlives nova-compute, which may be killed at any
moment while guests continue to run. Neither gpgpu-conductor nor the book of
the host has any influence on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

from tests.storm import record_file

DOUBLE_USE_FILE = 'double_use'


class DoubleUse(Exception):
    """A GPU would be used by two instances; has the history of the GPU."""


@dataclasses.dataclass
class Device:
    """State of one GPU.

    :ivar last_user: last instance for which the GPU was prepared; None after
        a cleaning
    :ivar guest: instance whose guest runs with the GPU
    :ivar cleaning: whether the GPU is being cleaned now
    """

    last_user: str | None = None
    guest: str | None = None
    cleaning: bool = False
    history: list[str] = dataclasses.field(default_factory=list)


class GroundTruth:
    """Ground truth about one host; thread-safe.

    :param folder: folder of the host; its files outlive the process
    :ivar counts: numbers of messages, claims and builds, by outcome
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._file = record_file.RecordFile(folder / 'ground_truth')
        self._double_use = folder / DOUBLE_USE_FILE
        self._lock = threading.RLock()
        self.devices: dict[str, Device] = {}
        self.counts: dict[str, int] = {}
        for event in self._file.read():
            self._replay(*event)
        for device in self.devices.values():
            # The process that cleaned it has ended.
            device.cleaning = False

    # -- events --------------------------------------------------------------

    def count(self, what: str) -> None:
        """Count an outcome of a message, a claim or a build."""
        with self._lock:
            self._write('count', what, '')

    def prepare(self, stable_id: str, instance: str) -> None:
        """Record that a GPU is being prepared for an instance.

        :raises DoubleUse: another instance uses it, it was not cleaned since
            it did, or it is being cleaned
        """
        with self._lock:
            device = self._device(stable_id)
            if device.cleaning or {device.last_user, device.guest} - {
                    None, instance}:
                self._fail(stable_id, f'prepared for {instance}')
            self._write('prepare', stable_id, instance)

    def start(self, instance: str, stable_ids: Iterable[str]) -> None:
        """Start the guest of an instance.

        :raises DoubleUse: a GPU is not prepared for it
        """
        with self._lock:
            for stable_id in stable_ids:
                device = self._device(stable_id)
                if device.cleaning or device.last_user != instance or (
                        device.guest not in (None, instance)):
                    self._fail(stable_id, f'given to guest {instance}')
                self._write('start', stable_id, instance)

    def end(self, instance: str) -> None:
        """End the guest of an instance, if it runs."""
        with self._lock:
            for stable_id in self.of_guest(instance):
                self._write('end', stable_id, instance)

    @contextlib.contextmanager
    def cleaning(self, stable_id: str) -> Iterator[Callable[[], None]]:
        """Record that a GPU is being cleaned in this context.

        :returns: a function that records that the cleaning succeeded
        :raises DoubleUse: a guest runs with it
        """
        with self._lock:
            if self._device(stable_id).guest is not None:
                self._fail(stable_id, 'cleaned')
            self._write('clean', stable_id, '')
        try:
            yield lambda: self._write('cleaned', stable_id, '')
        finally:
            self._write('clean ended', stable_id, '')

    # -- queries ------------------------------------------------------------

    def of_guest(self, instance: str) -> set[str]:
        """Return the stable ids of the GPUs of a guest, if one runs."""
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
        """Return the stable ids of GPUs that are not clean."""
        with self._lock:
            return {stable_id for stable_id, device in self.devices.items()
                    if device.guest or device.last_user}

    # -- the file -----------------------------------------------------------

    def _device(self, stable_id: str) -> Device:
        return self.devices.setdefault(stable_id, Device())

    def _write(self, what: str, stable_id: str, instance: str) -> None:
        with self._lock:
            event = (round(time.time(), 3), os.getpid(), what, stable_id,
                     instance)
            self._file.append(*event)
            self._replay(*event)

    def _replay(self, at: float, pid: int, what: str, stable_id: str,
                instance: str) -> None:
        if what == 'count':
            self.counts[stable_id] = self.counts.get(stable_id, 0) + 1
            return
        device = self._device(stable_id)
        device.history.append(f'{at:.3f} process {pid}: {what} {instance}')
        if what == 'prepare':
            device.last_user = instance
        elif what == 'start':
            device.guest = instance
        elif what == 'end':
            device.guest = None
        elif what == 'cleaned':
            device.last_user = None
        if what.startswith('clean'):
            device.cleaning = what == 'clean'

    def _fail(self, stable_id: str, what: str) -> None:
        device = self._device(stable_id)
        text = '\n    '.join([
            f'{stable_id} was {what} at {time.time():.3f}, and is in guest '
            f'{device.guest}, last user {device.last_user}, '
            f'{"being cleaned" if device.cleaning else "not being cleaned"}',
            *device.history[-20:]])
        with self._double_use.open('a', encoding='utf-8') as file:
            file.write(f'{text}\n')
        raise DoubleUse(text)
