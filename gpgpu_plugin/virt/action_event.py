# SPDX-License-Identifier: Apache-2.0
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
