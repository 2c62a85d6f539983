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
"""Cleaning of one device, reported to the conductor step by step."""

from __future__ import annotations

import uuid

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
    try:
        host.session.call(host.api.clean_started, task.device_uuid,
                          task.token, attempt)
    except exception.Conflict as exc:
        LOG.info('%s', exc)
        return None
    # Not only after a guest: a policy may have become stricter.
    host.assignments.cleaning(task.stable_id)
    verdict = _verdict(host.backend, task)
    if verdict.passed:
        # Before the conductor may give it to the next instance.
        host.assignments.cleaned(task.stable_id)
    else:
        LOG.error('Device %s (%s) was quarantined, as its cleaning failed: '
                  '%s. Repair it, then run "gpgpu-manage device release %s"',
                  task.device_uuid, task.address, verdict.evidence,
                  task.device_uuid)
    return host.session.call(
        host.api.clean_finished, task.device_uuid, attempt,
        task.steps, verdict.results,
        driver_capacities=host.backend.driver_capacity(
            [base.HostDevice.to_clean(task)]))


def _verdict(backend: base.Host,
             task: claim_obj.CleanTask) -> base.CleanVerdict:
    try:
        return backend.clean(base.HostDevice.to_clean(task))
    except exception.HostNotReady:
        raise
    except Exception as exc:
        LOG.exception('Cleaning of device %s (%s) failed', task.device_uuid,
                      task.address)
        return base.CleanVerdict.failed(
            base.HostDevice.to_clean(task), f'{type(exc).__name__}: {exc}')
