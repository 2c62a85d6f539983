# SPDX-License-Identifier: Apache-2.0
"""Cleanings of devices that run beside the host's other tasks.

A cleaning takes seconds or minutes, in which the host goes on reporting and
releasing devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import host as host_mod
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj

LOG = logging.getLogger(__name__)

MOMENT = 10.0
"""Seconds for which a task waits for its cleanings. What is offered again
within them needs no further iteration."""

_FIRST_DELAY, _MAX_DELAY = 30.0, 600.0
"""Seconds for which a device waits while its host is not set up."""

_Answer = inventory_obj.HostInventory | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Delay:
    """Wait of a device that its host cannot clean yet.

    :ivar until: seconds of the clock
    """

    error: exception.HostNotReady
    seconds: float
    until: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Failed:
    """End of a cleaning that raised."""

    task: claim_obj.CleanTask
    error: Exception


class Cleanings:
    """Cleanings in threads of their own, one at a time on each GPU.

    A process that ends leaves them undone: the next one begins them anew.

    :param limit: how many run at once
    :param clean: cleans one device; returns the host's inventory afterwards,
        None if another cleaning of it has begun
    :param ended: called when one has ended for which nobody waits
    :param moment: seconds for which ``run`` waits
    :param clock: seconds that only grow
    """

    def __init__(self, limit: int,
                 clean: Callable[[claim_obj.CleanTask], _Answer],
                 ended: Callable[[], None], moment: float = MOMENT,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clean = clean
        self._notify = ended
        self._moment = moment
        self._lock = threading.Lock()
        # Devices that are being cleaned, by the stable id of their GPU.
        self._running: dict[str, str] = {}
        self._outcomes: queue.Queue[_Answer | _Failed] = queue.Queue()
        self._waits = False
        self._clock = clock
        # By the device's UUID.
        self._delays: dict[str, _Delay] = {}

    def __bool__(self) -> bool:
        """Return whether any cleaning runs."""
        return bool(self._running)

    def run(self, wanted: Sequence[claim_obj.CleanTask]) -> Iterator[_Answer]:
        """Begin cleanings, and return the answers to those that have ended.

        It waits for them for a moment. Others go on, and their answers are
        returned by a later call, as well as those to earlier cleanings.

        :param wanted: devices to clean; one that is being cleaned is left out,
            and one for which there is no thread waits for a later call
        :raises Exception: what a cleaning raised, after the answers to others;
            of several, one that ends the session. Also what a device waits
            for: the caller tries again
        """
        now = self._clock()
        delays = {device: delay for device, delay in self._delays.items()
                  if delay.until > now}
        errors: list[Exception] = [
            delays[task.device_uuid].error for task in wanted
            if task.device_uuid in delays]
        for outcome in self._ended_within_a_moment([
                task for task in wanted if task.device_uuid not in delays]):
            if isinstance(outcome, _Failed):
                # The caller learns of one of them.
                LOG.warning('The cleaning of device %s (%s) ended without a '
                            'verdict: %s: %s', outcome.task.device_uuid,
                            outcome.task.address,
                            type(outcome.error).__name__, outcome.error)
                errors.append(outcome.error)
            else:
                yield outcome
        if errors:
            raise min(errors, key=lambda error: not isinstance(
                error, (exception.Fenced, exception.SessionLost)))

    def _ended_within_a_moment(
            self, wanted: Sequence[claim_obj.CleanTask],
            ) -> Iterator[_Answer | _Failed]:
        """Begin cleanings; return what came of them, and of earlier ones."""
        until = time.monotonic() + self._moment
        with self._waiting() as running:
            waiting = [task for task in wanted
                       if task.device_uuid not in running]
            while True:
                waiting = [task for task in waiting if not self._begin(task)]
                if not self._running and self._outcomes.empty():
                    return
                try:
                    yield self._outcomes.get(
                        timeout=max(0.0, until - time.monotonic()))
                except queue.Empty:
                    return

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[frozenset[str]]:
        """Note that somebody takes outcomes during the block.

        :returns: the devices that are being cleaned now
        """
        with self._lock:
            self._waits = True
            running = frozenset(self._running.values())
        try:
            yield running
        finally:
            with self._lock:
                self._waits = False
                left = not self._outcomes.empty()
            if left:
                self._notify()

    def _begin(self, task: claim_obj.CleanTask) -> bool:
        """Begin a cleaning, unless it has to wait for others.

        :returns: whether it began
        """
        gpu = _gpu_of(task.stable_id)
        with self._lock:
            if gpu in self._running or len(self._running) >= self._limit:
                return False
            self._running[gpu] = task.device_uuid
        try:
            threading.Thread(
                target=self._run, args=(gpu, task), daemon=True,
                name=f'gpgpu-clean-{task.address}').start()
        except BaseException:
            with self._lock:
                del self._running[gpu]
            raise
        return True

    def _run(self, gpu: str, task: claim_obj.CleanTask) -> None:
        outcome: _Answer | _Failed
        try:
            outcome = self._clean(task)
        except Exception as exc:  # noqa: BLE001 - run() raises it
            outcome = _Failed(task=task, error=exc)
        except BaseException as exc:  # noqa: BLE001 - the thread ends anyway
            # Such as SystemExit of a library: the process goes on.
            outcome = _Failed(task=task, error=RuntimeError(repr(exc)))
        with self._lock:
            self._note_delay(task, outcome)
            # In this order: run() looks without the lock.
            self._outcomes.put(outcome)
            del self._running[gpu]
            waits = self._waits
        if not waits:
            self._notify()

    def _note_delay(self, task: claim_obj.CleanTask,
                    outcome: _Answer | _Failed) -> None:
        """Let a device wait, longer each time, if its host is not set up."""
        before = self._delays.pop(task.device_uuid, None)
        if (isinstance(outcome, _Failed)
                and isinstance(outcome.error, exception.HostNotReady)):
            seconds = (_FIRST_DELAY if before is None
                       else min(2 * before.seconds, _MAX_DELAY))
            self._delays[task.device_uuid] = _Delay(
                error=outcome.error, seconds=seconds,
                until=self._clock() + seconds)


def _gpu_of(stable_id: str) -> str:
    """Return the stable id of the GPU that a device is, or is on."""
    return pci.pf_of(stable_id) or pci.function_id_of(stable_id)


# -- Cleaning of one device, reported to the conductor step by step.


def clean(host: host_mod.HostParts, task: claim_obj.CleanTask,
          ) -> inventory_obj.HostInventory | None:
    """Clean a dirty device; in doubt it is quarantined.

    :returns: the host's inventory afterwards; None if another cleaning of
        the device has begun
    :raises HostNotReady: the device waits for the next iteration
    :raises ConductorUnavailable: the next iteration begins again
    """
    attempt = str(uuid.uuid4())
    device = _device(host, task)
    try:
        host.session.call(host.api.clean_started, task.device_uuid,
                          task.token, attempt)
    except exception.Conflict as exc:
        LOG.info('%s', exc)
        return None
    # Not only after a guest: a policy may have become stricter.
    host.assignments.cleaning(task.stable_id)
    try:
        verdict, failure = _judged(host, task, attempt, device)
    except exception.HostNotReady as exc:
        host.session.call(host.api.clean_postponed, task.device_uuid, attempt,
                          str(exc))
        raise
    if failure is None:
        # Before the conductor may give it to the next instance.
        host.assignments.cleaned(task.stable_id)
    else:
        LOG.error('Device %s (%s) is not clean: %s. If it is quarantined, '
                  'repair it, then run "gpgpu-manage device release %s"; if '
                  'it waits for another cleaning policy, choose one',
                  task.device_uuid, task.address, failure, task.device_uuid)
    return host.session.call(
        host.api.clean_finished, task.device_uuid, attempt,
        task.steps, verdict.results,
        driver_capacities=host.backend.driver_capacity([device]))


def _device(host: host_mod.HostParts,
            task: claim_obj.CleanTask) -> base.HostDevice:
    """Return the device, which may have had a guest if the book says so.

    The conductor does not know a guest that ran and whose claim was not
    activated, as when nova-compute was killed in between. A device that
    replaces another one had none: the guest had the other one.
    """
    device = base.HostDevice.to_clean(task)
    if task.replaces:
        return device
    return dataclasses.replace(
        device, had_guest=task.had_guest
        or host.assignments.is_prepared(task.stable_id))


def _judged(host: host_mod.HostParts, task: claim_obj.CleanTask, attempt: str,
            device: base.HostDevice) -> tuple[base.CleanVerdict, str | None]:
    """Clean a device, and give it back if the conductor finds it clean.

    The conductor may know what the host does not: what an earlier cleaning
    found, and another policy. It records nothing yet, so that a crash makes
    the next start clean the device again.

    :returns: the verdict of the host, and why the device is not clean
    """
    verdict = _verdict(device, lambda: host.backend.clean(device))
    failure = host.session.call(host.api.clean_failure, task.device_uuid,
                                attempt, verdict.results)
    if failure is None:
        verdict = _verdict(device, lambda: _given_back(
            host.backend, device, verdict))
        failure = verdict.failure
    return verdict, failure


def _given_back(backend: base.ComputeHost, device: base.HostDevice,
                verdict: base.CleanVerdict) -> base.CleanVerdict:
    backend.give_back(device)
    return verdict


def _verdict(device: base.HostDevice,
             work: Callable[[], base.CleanVerdict]) -> base.CleanVerdict:
    """Return what work returns; an error is a negative verdict."""
    try:
        return work()
    except exception.HostNotReady:
        raise
    except Exception as exc:
        LOG.exception('Cleaning of %s failed', device.address)
        return base.CleanVerdict.failed(
            device, f'{type(exc).__name__}: {exc}')
