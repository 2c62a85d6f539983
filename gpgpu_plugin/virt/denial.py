# SPDX-License-Identifier: Apache-2.0
"""Errors of claims at the border to Nova: translated, and told to the user.

gpgpu-conductor records a denial for operators. Nova's fault drops the reason
if no host is left for a build, and a resize or cold migration leaves no fault:
an event of the server's action keeps it for the user. Nova logs each build
that fails as an error with its traceback. A denied claim is no error: the host
was taken meanwhile, and Nova tries the next one.
"""

from __future__ import annotations

import contextlib
import logging as python_logging
from collections.abc import Iterator

from nova import exception as nova_exception
from nova import objects
from oslo_log import log as logging
from oslo_utils import timeutils

from gpgpu_plugin import exception
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.virt import exception as virt_exception

LOG = logging.getLogger(__name__)

EVENT = 'gpgpu_claim'
"""Name of the event."""

NOVA_LOGGER = 'nova.compute.manager'
"""Logger of the module of Nova that builds instances."""

_LENGTH = 255
"""Characters of details that Nova stores."""

_Build = virt_exception.Build


@contextlib.contextmanager
def translated(context: nova_types.Context, instance: nova_types.Instance,
               host: str, build: _Build) -> Iterator[None]:
    """Translate the plugin's errors to those that Nova handles correctly.

    A denied build goes to the next host. A rebuild in place must not raise an
    error after which Nova assumes that nothing has happened, since the guest
    is gone already.
    """
    try:
        yield
    except virt_exception.DENIALS as exc:
        LOG.info('%s', virt_exception.reason(exc), instance=instance)
        record(context, instance.uuid, host, exc)
        denied = (nova_exception.ComputeResourcesUnavailable
                  if build is _Build.EVACUATION
                  else virt_exception.GPUClaimDenied)
        # Nova's conductor logs it with its traceback. The frames of the
        # claim, and the causes from another process, explain nothing.
        raise denied(reason=virt_exception.public(exc)) from None
    except exception.GPUPluginException as exc:
        LOG.error('Cannot make the GPUs ready: %s',
                  virt_exception.reason(exc))
        raise (nova_exception.InstanceDeployFailure
               if build is _Build.REBUILD else
               nova_exception.ComputeResourcesUnavailable)(
                   reason=virt_exception.public(exc)) from exc


def record(context: nova_types.Context, instance_uuid: str, host: str,
           exc: Exception) -> None:
    """Add a denial to the action that the user requested; never raises.

    The action as a whole may still succeed on another host. Nova's
    ``event_finish_with_failure`` would mark it as failed.

    :param exc: nothing is added for an error that is no denial
    """
    if not isinstance(exc, virt_exception.DENIALS):
        return
    now, reason = timeutils.utcnow(), virt_exception.reason(exc)
    try:
        objects.InstanceActionEvent(
            context, event=EVENT, host=host, result='Error', start_time=now,
            finish_time=now, details=reason[:_LENGTH],
        ).create(instance_uuid, context.request_id)
    except Exception:
        # Nova itself may act, without an action.
        LOG.exception('Cannot add event %s to the action of instance %s: %s',
                      EVENT, instance_uuid, reason)


def keep_out_of_nova_log() -> None:
    """Drop Nova's records of denials; repeated calls change nothing."""
    python_logging.getLogger(NOVA_LOGGER).addFilter(_is_kept)


def _is_kept(record: python_logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, virt_exception.GPUClaimDenied)
