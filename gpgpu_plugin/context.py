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
"""The request context that crosses RPC, and its serializer."""

from __future__ import annotations

import typing

import oslo_messaging
from oslo_context import context


class RequestContext(context.RequestContext):
    """Who asks, and under which request id it is logged."""


def admin(request_id: str | None = None) -> RequestContext:
    """A context for what the plugin does on its own account."""
    return RequestContext(is_admin=True, request_id=request_id,
                          overwrite=False)


class ContextSerializer(oslo_messaging.NoOpSerializer):
    """Carry the context; arguments are primitive already (objects.codec)."""

    def serialize_context(
            self, ctxt: RequestContext) -> dict[str, typing.Any]:
        return dict(ctxt.to_dict())

    def deserialize_context(
            self, ctxt: dict[str, typing.Any]) -> RequestContext:
        result: RequestContext = RequestContext.from_dict(ctxt)
        return result
