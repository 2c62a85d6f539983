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
"""Assignments that end when Nova calls ``destroy``; none in case of doubt.

Nova also destroys a guest to reboot, rebuild or move it. The operation follows
from the instance, not from the method's name (Nova 34,
nova/compute/manager.py).
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from nova.compute import task_states
from nova.compute import vm_states

_RELEASING_TASKS = (
    task_states.DELETING, task_states.SOFT_DELETING, task_states.SHELVING,
    task_states.SHELVING_IMAGE_PENDING_UPLOAD,
    task_states.SHELVING_IMAGE_UPLOADING, task_states.SHELVING_OFFLOADING)


class Release(enum.StrEnum):
    """The assignments of an instance on a host that end."""

    NOTHING = 'nothing'
    DESTINATION = 'destination'
    ALL = 'all'


def on_destroy(*, vm_state: str | None, task_state: str | None,
               deleted: bool, instance_host: str | None, this_host: str,
               may_be_evacuating: Callable[[], bool]) -> Release:
    """Return which of the instance's assignments on this host end.

    :param may_be_evacuating: returns whether an evacuation from this host may
        be under way
    """
    if deleted or task_state in _RELEASING_TASKS:
        return Release.ALL
    if task_state == task_states.RESIZE_REVERTING:
        return Release.DESTINATION
    if vm_state in (vm_states.BUILDING, vm_states.SOFT_DELETED):
        return Release.ALL
    if vm_state == vm_states.RESIZED:
        # The source waits for confirmation or revert.
        return Release.NOTHING
    if instance_host is not None and instance_host != this_host:
        # The source of an evacuation that came back, or a rolled back live
        # migration: the instance lives elsewhere.
        return Release.ALL
    if task_state is None and instance_host == this_host:
        # A delete that confirms a resize first has no task any more when Nova
        # destroys the guest. The only other guest without a task is that of an
        # evacuation, which Nova destroys when the source starts, even before
        # the evacuation has moved the instance. If the evacuation fails, the
        # instance stays here and needs its devices.
        return Release.NOTHING if may_be_evacuating() else Release.ALL
    return Release.NOTHING
