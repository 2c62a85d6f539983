# SPDX-License-Identifier: Apache-2.0
"""Messages to hosts after a change that others made."""

from __future__ import annotations

from collections.abc import Callable

from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context

LOG = logging.getLogger(__name__)


def notify(cast: Callable[[gpgpu_context.RequestContext, str], None],
           ctxt: gpgpu_context.RequestContext, host: str) -> None:
    """Notify a host; it makes up for a message that is lost.

    If the database differs from the host's book, the host notices at its
    next digest. An instance that is deleted on another host makes no such
    difference; the host notices it with Nova's periodic update. An error is
    only logged: the caller's change is done, and other hosts wait for their
    messages.
    """
    try:
        cast(ctxt, host)
    except Exception:
        LOG.exception('Cannot notify %s of a change; it finds the '
                      'difference itself later', host)
