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
"""Whether devices go when Nova calls ``destroy``: a table, default keep.

Nova destroys a guest also to reboot, rebuild or move it. What it is about
to do follows from the instance, not from the method's name (Nova 34,
nova/compute/manager.py).
"""

from __future__ import annotations

from nova.compute import task_states
from nova.compute import vm_states

_RELEASING_TASKS = (
    task_states.DELETING, task_states.SOFT_DELETING, task_states.SHELVING,
    task_states.SHELVING_IMAGE_PENDING_UPLOAD,
    task_states.SHELVING_IMAGE_UPLOADING, task_states.SHELVING_OFFLOADING)


def releases(*, vm_state: str | None, task_state: str | None, deleted: bool,
             instance_host: str | None, this_host: str,
             spawning_here: bool = False) -> bool:
    """Whether destroy gives back what the instance holds on this host.

    :param spawning_here: a build, unshelve or evacuation to this host is
        under way in this process; its own undo gives back
    """
    if spawning_here:
        return False
    if deleted or task_state in _RELEASING_TASKS:
        return True
    if vm_state in (vm_states.BUILDING, vm_states.SOFT_DELETED):
        return True
    # The source of an evacuation that came back, or a rolled back live
    # migration: the instance lives elsewhere.
    return instance_host is not None and instance_host != this_host
