# SPDX-License-Identifier: Apache-2.0
"""Cleaning of one device, reported to the conductor step by step."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import host as host_mod
from gpgpu_plugin.host import base
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj

LOG = logging.getLogger(__name__)


def clean(host: host_mod.Host, task: claim_obj.CleanTask,
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


def _device(host: host_mod.Host,
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


def _judged(host: host_mod.Host, task: claim_obj.CleanTask, attempt: str,
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


def _given_back(backend: base.Host, device: base.HostDevice,
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
