# SPDX-License-Identifier: Apache-2.0
"""Functions that are being cleaned while the host is scanned.

A function does not answer while it is reset, and the privileged helper opens
it, as only strangers do otherwise. So a scan shows such functions as they were
before their cleaning began.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from gpgpu_plugin.domain import nvswitch
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import scanner


class FunctionsInCleaning:
    """Functions of a host that are being cleaned. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: dict[str, pci.PCIFunction] = {}
        # Those whose cleaning has ended since the last scan began.
        self._lately: dict[str, pci.PCIFunction] = {}
        self._shown: set[str] = set()

    @contextlib.contextmanager
    def cleaning(self, functions: Iterable[pci.PCIFunction],
                 ) -> Iterator[None]:
        """Note that functions are being cleaned during the block.

        :param functions: as they are before
        """
        found = {function.id: function for function in functions}
        with self._lock:
            self._now |= found
        try:
            yield
        finally:
            with self._lock:
                for stable_id in found:
                    self._lately[stable_id] = self._now.pop(stable_id)

    def ids(self) -> frozenset[str]:
        """Return the stable ids of the functions."""
        with self._lock:
            return frozenset(self._now)

    def begin_scan(self) -> None:
        """Note that a scan begins, whose result is passed to ``shown``."""
        with self._lock:
            self._lately.clear()

    def shown(self, scan: scanner.Scan) -> scanner.Scan:
        """Return a scan with the functions as they were before."""
        with self._lock:
            before = self._lately | self._now
            self._shown = set(before)
        return _as_before(scan, before)

    def scan_alone(self, read: Callable[[], scanner.Scan]) -> scanner.Scan:
        """Return a scan of its own, beside those of ``shown``."""
        with self._lock:
            before = dict(self._now)
        scan = read()
        with self._lock:
            before |= self._now
        return _as_before(scan, before)

    def shown_ids(self) -> frozenset[str]:
        """Return the stable ids of those that the last scan shows so."""
        with self._lock:
            return frozenset(self._shown)

    def is_outdated(self) -> bool:
        """Return whether the last scan shows a function as it was.

        It is scanned again once its cleaning has ended.
        """
        with self._lock:
            return bool(self._shown - self._now.keys())


def _as_before(scan: scanner.Scan, before: Mapping[str, pci.PCIFunction],
               ) -> scanner.Scan:
    """Return a scan with some functions as they were."""
    if not before:
        return scan
    found = {function.address: function for function in scan.functions}
    found |= {function.address: function for function in before.values()}
    # The scan of a card alone does not see the host's NVSwitches.
    return dataclasses.replace(scan, functions=tuple(nvswitch.observed(
        found[address] for address in sorted(found))))
