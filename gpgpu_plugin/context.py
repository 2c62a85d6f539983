# SPDX-License-Identifier: Apache-2.0
"""The request context of RPC calls, and its serializer."""

from __future__ import annotations

import copy
import dataclasses
import enum
import re
import typing
from collections.abc import Callable
from collections.abc import Mapping

import oslo_messaging
from oslo_context import context

_REQUEST_ID = re.compile(r'req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')

_MAX_LENGTH = 255
"""Characters of an actor, as the database stores them."""

SENT = ('request_id', 'global_request_id', 'actor', 'wanted')
"""Fields of a context that calls carry; a server reads no others."""


class CallerKind(enum.StrEnum):
    """Kind of a caller of gpgpu-conductor."""

    HOST = 'host'
    SCHEDULER = 'scheduler'
    OPERATOR = 'operator'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Caller:
    """Caller whose signature was verified.

    :ivar name: of a host: that of its nova-compute service; of others: what
        the operator named the key
    :ivar number: of the key
    :ivar answer_mac: returns the MAC of a text that answers the call
    """

    kind: CallerKind
    name: str
    number: int
    answer_mac: Callable[[str], str] = dataclasses.field(
        repr=False, compare=False)


class RequestContext(context.RequestContext):
    """The user of a request, and its IDs in the logs.

    ``request_id`` is that of one call to another service of the plugin, and
    ``global_request_id`` that of the user's request to Nova, if there is one.

    :ivar wanted: seconds that the caller waits for the answer to this call;
        None: no limit is known, and the call is never dropped
    :ivar signature: of this call, see rpc.signature; None: it is not signed
    :ivar actor: who the caller says it is
    :ivar caller: who signed the call that is served; None: nobody, or this
        context was not received
    """

    wanted: float | None = None
    signature: Mapping[str, object] | None = None
    actor: str | None = None
    caller: Caller | None = None

    def sent(self) -> dict[str, object]:
        """Return the fields that a call carries; its signature covers them."""
        return {name: getattr(self, name) for name in SENT}

    def of_actor(self, actor: str | None) -> RequestContext:
        """Return the context for a caller that says who it is."""
        named = copy.copy(self)
        named.actor = actor
        return named

    def for_call(self, wanted: float | None) -> RequestContext:
        """Return the context of one call, which is not signed yet."""
        call = copy.copy(self)
        call.wanted, call.signature = wanted, None
        return call


def admin(request_id: str | None = None) -> RequestContext:
    """Return a context for calls that no user requested."""
    return RequestContext(is_admin=True, request_id=request_id,
                          overwrite=False)


def current() -> RequestContext:
    """Return a context for a call that the request of this thread causes.

    Nova keeps the context of a request with the thread that works for it, and
    oslo.log logs with it. ``global_request_id`` of the call is the ID that
    Nova's API gave that request: the user finds it in the answer, and in the
    actions of the server. Without a request the context is as ``admin``
    returns it.
    """
    found = context.get_current()
    return RequestContext(
        is_admin=True, overwrite=False,
        global_request_id=found.request_id
        if found is not None and is_request_id(found.request_id) else None)


def is_request_id(text: object) -> bool:
    """Return whether a text is a request ID, as all services make them."""
    return isinstance(text, str) and bool(_REQUEST_ID.fullmatch(text))


class ContextSerializer(oslo_messaging.NoOpSerializer):
    """Serializer of the context; arguments are primitives (rpc.contract)."""

    CALLER = 'verified_caller'
    """Field in which a server notes who signed the call that it received."""

    def serialize_context(
            self, ctxt: RequestContext) -> dict[str, object]:
        return ctxt.sent() if ctxt.signature is None else {
            **ctxt.sent(), 'signature': ctxt.signature}

    def deserialize_context(
            self, ctxt: dict[str, object]) -> RequestContext:
        # These are logged and stored, and may not be signed.
        result: RequestContext = RequestContext.from_dict({
            name: ctxt.get(name)
            for name in ('request_id', 'global_request_id')
            if is_request_id(ctxt.get(name))})
        result.wanted = typing.cast('float | None', ctxt.get('wanted'))
        actor = ctxt.get('actor')
        if (isinstance(actor, str) and actor.isprintable()
                and len(actor) <= _MAX_LENGTH):
            result.actor = actor
        found = ctxt.get(self.CALLER)
        # Whatever was received as such is no Caller.
        result.caller = found if isinstance(found, Caller) else None
        return result
