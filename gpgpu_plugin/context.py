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
"""The request context of RPC calls, and its serializer."""

from __future__ import annotations

import copy
import typing

import oslo_messaging
from oslo_context import context


class RequestContext(context.RequestContext):
    """The user of a request, and the request ID in the logs.

    :ivar wanted: seconds that the caller waits for the answer to this call;
        None: no limit is known, and the call is never dropped
    """

    wanted: float | None = None

    def wanted_for(self, seconds: float | None) -> RequestContext:
        """Return the context of a call whose caller waits so long."""
        call = copy.copy(self)
        call.wanted = seconds
        return call


def admin(request_id: str | None = None) -> RequestContext:
    """Return a context for calls that no user requested."""
    return RequestContext(is_admin=True, request_id=request_id,
                          overwrite=False)


class ContextSerializer(oslo_messaging.NoOpSerializer):
    """Serializer of the context; arguments are primitives (rpc.contract)."""

    def serialize_context(
            self, ctxt: RequestContext) -> dict[str, object]:
        return {**ctxt.to_dict(), 'wanted': ctxt.wanted}

    def deserialize_context(
            self, ctxt: dict[str, object]) -> RequestContext:
        result: RequestContext = RequestContext.from_dict(ctxt)
        return result.wanted_for(typing.cast(
            'float | None', ctxt.get('wanted')))
