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
"""The reason of a denied claim, where the user of the server finds it.

Nova's fault drops the reason if no host is left for a build, and a resize or
cold migration leaves no fault. An event of the server's action keeps it.
"""

from __future__ import annotations

from nova import objects
from oslo_log import log as logging
from oslo_utils import timeutils

from gpgpu_plugin.compute import nova_types

LOG = logging.getLogger(__name__)

EVENT = 'gpgpu_claim'
"""Name of the event."""

_LENGTH = 255
"""Characters of details that Nova stores."""


def denied(context: nova_types.Context, instance_uuid: str, host: str,
           reason: str) -> None:
    """Add the reason to the action that the user requested; never raises.

    The action as a whole may still succeed on another host. Nova's
    ``event_finish_with_failure`` would mark it as failed.
    """
    now = timeutils.utcnow()
    try:
        objects.InstanceActionEvent(
            context, event=EVENT, host=host, result='Error', start_time=now,
            finish_time=now, details=reason[:_LENGTH],
        ).create(instance_uuid, context.request_id)
    except Exception:
        # Nova itself may act, without an action.
        LOG.exception('Cannot add event %s to the action of instance %s: %s',
                      EVENT, instance_uuid, reason)
