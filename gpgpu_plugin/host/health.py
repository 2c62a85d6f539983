# SPDX-License-Identifier: Apache-2.0
"""The health of a host's GPUs, and the errors that they had.

Errors count from the last cleaning of a GPU on, also across restarts of
nova-compute and reboots of the host, so that their history is in a file. If it
is lost, they count from the next scan on.
"""

from __future__ import annotations

import dataclasses
import pathlib
import threading
from collections.abc import Collection
from collections.abc import Mapping

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin import versioned_file
from gpgpu_plugin.domain import health
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.discovery import watch

LOG = logging.getLogger(__name__)

VERSION = 1
"""Version of the file's format."""

Readings = Mapping[str, watch.HealthReading]
"""Readings of the files of GPUs, by stable id."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Histories:
    """Content of the file: histories by stable id."""

    errors: dict[str, health.ErrorHistory] = dataclasses.field(
        default_factory=dict)


class HealthBook:
    """Judge of the health of a host's GPUs. Thread-safe.

    :param path: of the file, which the first error creates
    :param withhold_degraded: whether nobody gets a degraded GPU
    """

    def __init__(self, sysfs: sysfs_mod.Sysfs, path: str, *,
                 withhold_degraded: bool = False) -> None:
        self._sysfs = sysfs
        self._path = pathlib.Path(path)
        self._withhold_degraded = withhold_degraded
        self._lock = threading.Lock()
        self._histories: dict[str, health.ErrorHistory] | None = None
        # As they were judged last; those in cleaning are not judged.
        self._conditions: dict[str, health.Condition] = {}

    def read(self, scan: scanner.Scan, in_cleaning: Collection[str],
             ) -> dict[str, watch.HealthReading]:
        """Read the files of the GPUs of a scan.

        :param in_cleaning: stable ids of functions that may be in a reset
        """
        return {function.id: watch.read_health(self._sysfs, function.address)
                for function in scan.functions
                if watch.is_judged(function)
                and function.id not in in_cleaning}

    def judged(self, scan: scanner.Scan, readings: Readings) -> scanner.Scan:
        """Return a scan with the health of the GPUs that were read.

        With ``withhold_degraded``, a degraded GPU has a fault, so that no
        variant matches it.
        """
        found: dict[str, health.Condition] = {}
        with self._lock:
            histories = dict(self._loaded())
            for function in scan.functions:
                reading = readings.get(function.id)
                if reading is None:
                    continue
                if 'config' in function.unreadable:
                    found[function.id] = health.unreadable()
                    continue
                history = histories.get(
                    function.id, health.ErrorHistory())
                if function.fault is None:
                    history = history.after(reading.counts.uncorrected)
                    histories[function.id] = history
                found[function.id] = health.judge(
                    fault=function.fault, links=reading.links,
                    counts=reading.counts, history=history)
            self._store(histories)
            self._conditions |= found
        return self._withheld(dataclasses.replace(scan, health=found))

    def _withheld(self, scan: scanner.Scan) -> scanner.Scan:
        if not self._withhold_degraded:
            return scan
        return dataclasses.replace(scan, functions=tuple(
            dataclasses.replace(function, fault=(
                f'it is degraded, and [gpgpu_compute] withhold_degraded is '
                f'set: {condition.reason}'))
            if (condition := self._conditions.get(function.id)) is not None
            and condition.health is health.Health.DEGRADED else function
            for function in scan.functions))

    def cleaned(self, stable_id: str, address: str) -> bool:
        """Count the errors of a GPU from now on, since it is clean.

        :returns: whether it had any
        """
        counts = watch.read_health(self._sysfs, address).counts
        with self._lock:
            histories = dict(self._loaded())
            if stable_id not in histories:
                return False
            before = histories[stable_id].after(counts.uncorrected)
            histories[stable_id] = before.cleaned()
            self._store(histories)
            return bool(before.new)

    def _loaded(self) -> Mapping[str, health.ErrorHistory]:
        if self._histories is None:
            try:
                found = versioned_file.read_versioned(self._path, _Histories,
                                                      VERSION)
            except (OSError, exception.Invalid) as exc:
                LOG.error(
                    'Cannot read from %(path)s how many errors the GPUs of '
                    'this host had before: %(reason)s. Errors count from now '
                    'on, and the file is replaced', {
                        'path': self._path, 'reason': exc})
                found = None
            self._histories = dict(found.errors) if found is not None else {}
        return self._histories

    def _store(self, histories: dict[str, health.ErrorHistory]) -> None:
        """Keep histories in memory, and in the file if it can be written."""
        if histories == self._histories:
            return
        self._histories = histories
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            versioned_file.write_versioned(
                self._path, _Histories(errors=histories), VERSION)
        except OSError as exc:
            LOG.error(
                'Cannot write to %(path)s how many errors the GPUs of this '
                'host had: %(reason)s. After a restart of nova-compute they '
                'may count as new, or not at all', {
                    'path': self._path, 'reason': exc})
