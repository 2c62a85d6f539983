# SPDX-License-Identifier: Apache-2.0
"""Remote methods, typed on both ends by one Protocol.

A contract is a Protocol whose methods take a request context and keyword-only
arguments: ``def claim(self, ctxt, *, request: ClaimRequest) -> Claim``. Its
method names and argument names are those on the wire. A client names a method
of the contract where it calls it, a server subclasses the contract, so mypy
refuses an argument that is renamed, added or typed differently on one end.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from collections.abc import Mapping

import oslo_messaging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import signature
from gpgpu_plugin.rpc import transport as rpc_transport

_Context = gpgpu_context.RequestContext
_Contract = typing.TypeVar('_Contract')
_Endpoint = typing.TypeVar('_Endpoint')
_Result = typing.TypeVar('_Result')
_Arguments = typing.ParamSpec('_Arguments')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signing:
    """Signer of the calls of a client, and their topic.

    :ivar topic: to which it sends them
    """

    signer: signature.Signer
    topic: str


class Client:
    """Client that calls the methods of a contract on a server.

    :param timeout: seconds to wait for an answer, which the server learns;
        default that of oslo.messaging
    :param signing: None: calls are not signed
    :param once: seconds to wait for this message's answer; default
        ``timeout``
    """

    def __init__(self, client: rpc_transport.RPCClient,
                 timeout: float | None = None,
                 signing: Signing | None = None,
                 once: float | None = None) -> None:
        self._client = (client if timeout is None
                        else client.prepare(timeout=once or timeout))
        self._timeout = timeout
        self._signing = signing

    def call(
        self,
        method: Callable[
            typing.Concatenate[_Contract, _Context, _Arguments], _Result],
        ctxt: _Context,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """Call a method and return its result.

        :param method: method of a contract, such as ``Conductor.claim``
        :param args: none, since arguments of a contract are keyword-only
        :raises Invalid: the result does not fit the contract
        :raises AnswerRefused: the answer is not signed as the call is
        """
        arguments = _encoded(kwargs)
        call, mac = self._context(
            ctxt, method.__name__, arguments, self._timeout)
        result = (self._client.call(call, method.__name__, **arguments)
                  if mac is None else signature.open_answer(
                      mac, method.__name__, self._sealed(
                          call, method.__name__, arguments)))
        return typing.cast('_Result', codec.received(
            _hints(method)['return'], result))

    def _sealed(self, call: _Context, method: str,
                arguments: Mapping[str, object]) -> object:
        """Return the answer to a signed call, which anybody may have sent."""
        try:
            return self._client.call(call, method, **arguments)
        except (oslo_messaging.MessagingTimeout,
                oslo_messaging.MessageDeliveryFailure,
                exception.CallerRefused):
            raise
        except Exception as exc:
            # An error of Python is no signed answer.
            [first, *_] = str(exc).splitlines() or ['']
            raise exception.AnswerRefused(
                method=method, reason=f'it has no signature, and says '
                                      f'{first!a:.300}') from exc

    def cast(
        self,
        method: Callable[
            typing.Concatenate[_Contract, _Context, _Arguments], None],
        ctxt: _Context,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> None:
        """Send a message and do not wait until a server handles it."""
        arguments = _encoded(kwargs)
        call, _ = self._context(ctxt, method.__name__, arguments, None)
        self._client.cast(call, method.__name__, **arguments)

    def _context(self, ctxt: _Context, method: str,
                 arguments: Mapping[str, object],
                 wanted: float | None,
                 ) -> tuple[_Context, Callable[[str], str] | None]:
        """Return the context of one call, and what makes its answer's MAC.

        Neither is signed if calls are not.
        """
        call = ctxt.for_call(wanted)
        if self._signing is None:
            return call, None
        signer, topic = self._signing.signer, self._signing.topic
        signed = signer.sign(topic, method, arguments, call.sent())
        call.signature = dataclasses.asdict(signed)
        return call, functools.partial(
            signer.mac_of_answer, signed, topic, method)


_LONGER = 'gpgpu_longer'
_Method = typing.TypeVar('_Method', bound=Callable[..., object])


def longer(seconds: float) -> Callable[[_Method], _Method]:
    """Return a decorator: the server itself waits for others so long."""
    def decorate(method: _Method) -> _Method:
        setattr(method, _LONGER, seconds)
        return method
    return decorate


def longer_by(method: Callable[..., object]) -> float:
    """Return the seconds for which a server itself may wait for others."""
    return typing.cast('float', getattr(method, _LONGER, 0))


# Evaluates annotations that are text, which took longer than encoding.
_hints = functools.cache(typing.get_type_hints)


def _encoded(arguments: Mapping[str, object]) -> dict[str, object]:
    return {name: codec.sendable(codec.to_primitive(value))
            for name, value in arguments.items()}


def methods(contract: type[object]) -> dict[str, Callable[..., object]]:
    """Return the remote methods of a contract by name."""
    return {name: member
            for part in reversed(contract.__mro__)
            for name, member in vars(part).items()
            if inspect.isfunction(member) and not name.startswith('_')}


def serve(contract: type[object]) -> Callable[
        [type[_Endpoint]], type[_Endpoint]]:
    """Return a decorator that makes a class an endpoint of a contract.

    The class implements the contract with typed values; oslo.messaging hands
    primitives to its methods and sends the primitives that they return. The
    plugin's own errors are answers, not failures that oslo.messaging logs.
    """
    def decorate(endpoint: type[_Endpoint]) -> type[_Endpoint]:
        for name, method in methods(contract).items():
            setattr(endpoint, name, _served(
                getattr(endpoint, name), _hints(method)))
        return endpoint
    return decorate


def _served(implementation: Callable[..., object],
            kinds: Mapping[str, type[object]]) -> Callable[..., object]:
    """Return a method that takes and returns primitives.

    An argument that the contract does not have raises TypeError, as any call
    of a Python function does.
    """
    def answer(endpoint: object, ctxt: _Context,
               **primitives: object) -> object:
        try:
            return codec.to_primitive(implementation(endpoint, ctxt, **{
                name: codec.received(kinds[name], value, codec.MAX_LENGTH)
                if name in kinds else value
                for name, value in primitives.items()}))
        except exception.GPUPluginException as exc:
            # Formatting the traceback, which nobody shows, would take longer
            # than most refusals.
            raise exc.with_traceback(None) from None
    served: Callable[..., object] = oslo_messaging.expected_exceptions(
        exception.GPUPluginException)(answer)
    return functools.wraps(implementation)(served)
