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
"""Assignments that nobody uses any more.

Nova and the hypervisor decide. In case of doubt an assignment counts as used:
cleaning a device under a running guest is worse than waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.objects import claim

MOVING = (task_states.RESIZE_PREP, task_states.RESIZE_MIGRATING,
          task_states.RESIZE_MIGRATED, task_states.RESIZE_FINISH)
"""Tasks in which a migration has a claim for its destination."""


def is_orphaned(assignment: claim.Assignment,
                guests: Callable[[], Collection[str]]) -> bool:
    """Return whether nobody uses an assignment on this host any more.

    It is not called for assignments of an instance that is being built here.

    :param guests: UUIDs of the instances whose guests are on this host
    :raises Exception: Nova or the hypervisor does not answer
    """
    if assignment.instance_uuid in guests():
        return False
    if (assignment.state == device_rules.DeviceState.PROVISIONING
            and assignment.role is claim.ClaimRole.INSTANCE):
        return True
    instance = _find(assignment.instance_uuid)
    if instance is None:
        return True
    return (assignment.state == device_rules.DeviceState.PROVISIONING
            and instance.task_state not in MOVING)


def _find(uuid: str) -> objects.Instance | None:
    """Return the instance; None if Nova deleted it."""
    context = nova_context.get_admin_context(read_deleted='yes')
    try:
        instance = objects.Instance.get_by_uuid(context, uuid)
    except nova_exception.InstanceNotFound:
        return None
    return None if instance.deleted else instance
