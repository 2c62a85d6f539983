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
