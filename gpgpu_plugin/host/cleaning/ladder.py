# SPDX-License-Identifier: Apache-2.0
"""The steps of one cleaning, run one after the other.

The cleaning stops at the first step that fails, since what another step would
find then says nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin import extensions
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import gpu
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.cleaning import steps as steps_host
from gpgpu_plugin.host.discovery import scanner

LOG = logging.getLogger(__name__)

STEPS = 'gpgpu_plugin.cleaning_steps'

# Threads of steps that took too long, by the stable id of their device.
_late: dict[str, threading.Thread] = {}


def check_idle(stable_id: str) -> None:
    """Refuse a device on which a step of an earlier cleaning still runs.

    :raises HostError: one does
    """
    thread = _late.get(stable_id)
    if thread is not None and thread.is_alive():
        raise exception.HostError(
            path=stable_id, reason=f'step {thread.name} of an earlier '
            f'cleaning has not ended; try again later, or restart '
            f'nova-compute')
    _late.pop(stable_id, None)


def clean(target: steps_host.Target) -> tuple[cleaning.StepResult, ...]:
    """Run the steps that the policy of a device names.

    :returns: results in order, up to the first failure; only that failure if
        the step cannot begin
    :raises HostError: a step of an earlier cleaning still runs
    :raises HostNotReady: the host is not set up for a step
    """
    check_idle(target.device.stable_id)
    steps = [_load(name) for name in target.device.steps]
    try:
        return _run_all(target, steps)
    finally:
        target.ended.set()


def _load(name: str) -> steps_host.CleaningStep:
    """Return a new step.

    :raises HostNotReady: it is not installed, or cannot be loaded
    """
    try:
        step: steps_host.CleaningStep = extensions.load(STEPS, name)()
    except Exception as exc:
        LOG.exception('Step %s of a cleaning cannot be loaded', name)
        raise exception.HostNotReady(
            path=name, reason=f'this host cannot load the step: {exc}; '
            f'install it and restart nova-compute, or change the cleaning '
            f'policy of the variant') from exc
    return step


def _run_all(target: steps_host.Target,
             steps: Sequence[steps_host.CleaningStep],
             ) -> tuple[cleaning.StepResult, ...]:
    for step in steps:
        failed = _run(target, step, functools.partial(step.begin, target))
        if failed is not None:
            return (failed,)
    results = []
    for step in steps:
        result = _run(target, step, functools.partial(step.run, target))
        assert result is not None
        results.append(result)
        if result.outcome is cleaning.StepOutcome.FAILED:
            break
    return tuple(results)


def _run(target: steps_host.Target, step: steps_host.CleaningStep,
         work: Callable[[], cleaning.StepResult | None],
         ) -> cleaning.StepResult | None:
    """Return what a part of a step returned within the step's limit.

    :raises HostNotReady: the host is not set up for it
    """
    began = time.monotonic()
    try:
        result = _within(target, step, work)
    except exception.HostNotReady:
        raise
    except TimeoutError:
        result = step.failed(
            f'it took longer than {step.limit_for(target):g} s')
    except exception.HostError as exc:
        result = step.failed(str(exc))
    except BaseException as exc:
        # A third-party step may raise anything, also SystemExit; other
        # devices must be cleaned all the same.
        LOG.exception('Step %s of a cleaning failed', step.name)
        result = step.failed(f'{type(exc).__name__}: {exc}')
    return result and dataclasses.replace(
        result, seconds=round(time.monotonic() - began, 3))


def _within(target: steps_host.Target, step: steps_host.CleaningStep,
            work: Callable[[], cleaning.StepResult | None],
            ) -> cleaning.StepResult | None:
    """Return the result of work that is not waited for beyond a limit.

    :raises TimeoutError: it takes longer; its thread goes on alone
    """
    outcome: list[cleaning.StepResult | None] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as exc:  # noqa: BLE001
            # For the thread that waits.
            errors.append(exc)
    thread = threading.Thread(target=run, name=step.name, daemon=True)
    thread.start()
    thread.join(step.limit_for(target))
    if errors:
        raise errors[0]
    if not outcome:
        _late[target.device.stable_id] = thread
        raise TimeoutError
    return outcome[0]


# -- Functions that are being cleaned while the host is scanned.
#
# A function does not answer while it is reset, and the privileged helper opens
# it, as only strangers do otherwise. So a scan shows such functions as they
# were before their cleaning began.


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
    return dataclasses.replace(scan, functions=tuple(gpu.observed_nvswitches(
        found[address] for address in sorted(found))))
