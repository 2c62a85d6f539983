# SPDX-License-Identifier: Apache-2.0
"""Client of the conductor: topics, limits, signatures of calls."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
import typing
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import guard
from gpgpu_plugin.rpc import pages
from gpgpu_plugin.rpc import signature as signature_mod
from gpgpu_plugin.rpc import transport as rpc_transport

_Context = gpgpu_context.RequestContext
_Conductor = conductor_contract.Conductor
_Result = typing.TypeVar('_Result')
_Arguments = typing.ParamSpec('_Arguments')
_Client = typing.TypeVar('_Client', bound='ConductorClient')


_TRIES = 4
"""Messages that a client sends for a call at most."""

_SHORTEST = 1.0
"""Seconds that it waits at least before it sends the next one."""


def _tries(method: str, timeout: float) -> int:
    return (min(_TRIES, max(1, int(timeout / _SHORTEST)))
            if method in REPEATED else 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Channel:
    client: rpc_transport.RPCClient
    signing: contract.Signing | None


def signing(conf: cfg.ConfigOpts, kind: gpgpu_context.CallerKind, topic: str,
            name: str | None = None) -> contract.Signing | None:
    """Return how this process signs calls as a kind of caller, if it does.

    :param name: of the caller, if it is a host
    :raises ConfigInvalid: it has no key
    """
    if not signature_mod.is_required(conf):
        return None
    return contract.Signing(topic=topic, signer=signature_mod.read_caller_key(
        conf, kind,
        name if kind is gpgpu_context.CallerKind.HOST else None))


def calls(served: type[object]) -> Callable[[type[_Client]], type[_Client]]:
    """Return a decorator: a client calls all methods of a contract.

    A list gets all its pages: ``limit`` is the number of rows then. Methods
    that the class itself has stay as they are.
    """
    def decorate(client: type[_Client]) -> type[_Client]:
        for name, method in contract.methods(served).items():
            if name not in vars(client):
                setattr(client, name, _calling(method))
        return client
    return decorate


def _calling(method: Callable[..., typing.Any]) -> Callable[..., object]:
    signature, page = inspect.signature(method), pages.size_of(method)
    longer = contract.longer_by(method)

    @functools.wraps(method)
    def call(self: ConductorClient, ctxt: _Context, *args: object,
             **kwargs: object) -> object:
        bound = signature.bind(self, ctxt, *args, **kwargs)
        bound.apply_defaults()
        _, _, *names = bound.arguments
        arguments = {name: bound.arguments[name] for name in names}
        ask = functools.partial(self._call_within, self._timeout + longer,
                                method, ctxt)
        if page is None:
            return ask(**arguments)
        limit, marker = arguments.pop('limit'), arguments.pop('marker')
        return pages.collect(
            lambda limit, marker: ask(
                **arguments, limit=limit, marker=marker),
            # Commands have None for all.
            pages.ALL if limit is None else limit, marker, page)
    return call


class ConductorClient:
    """Client that sends calls to any live conductor.

    Every method raises ConductorUnavailable if no conductor answers in time.

    :param timeout: seconds; default ``[gpgpu] rpc_timeout``
    :param caller: None: each call is that of a kind of caller that may make
        it, for a process that is several of them
    :param name: of the caller, for events: of a host that of its service
    :raises ConfigInvalid: calls are signed, and the caller has no key
    """

    def __init__(self, conf: cfg.ConfigOpts,
                 transport: rpc_transport.Transport | None = None,
                 timeout: float | None = None,
                 caller: gpgpu_context.CallerKind | None = None,
                 name: str | None = None) -> None:
        self._timeout: float = timeout or conf.gpgpu.rpc_timeout
        self._conf = conf
        self._transport = transport or rpc_transport.get_transport(conf)
        self._caller = caller
        self._name = name
        self._channels: dict[gpgpu_context.CallerKind, _Channel] = {}
        if caller is not None:
            # A key that is missing is found now, not by the first call.
            self._channel(caller)
        self._probed = False

    def _call_within(
        self,
        timeout: float,
        method: Callable[
            typing.Concatenate[_Conductor, _Context, _Arguments], _Result],
        ctxt: _Context,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        self._probe()
        channel, left = self._channel_of(method), timeout
        refused = None
        named = ctxt.of_actor(self._name)
        for tries in range(_tries(method.__name__, timeout), 0, -1):
            began = time.monotonic()
            try:
                return contract.Client(
                    channel.client, left, channel.signing, left / tries,
                    ).call(method, named, *args, **kwargs)
            except oslo_messaging.MessageDeliveryFailure:
                break
            except (oslo_messaging.MessagingTimeout,
                    exception.AnswerRefused) as exc:
                if isinstance(exc, exception.AnswerRefused):
                    refused = exc
                left -= time.monotonic() - began
                if left <= 0:
                    break
        raise refused or exception.ConductorUnavailable(
            method=method.__name__, timeout=timeout)

    def _cast_to_all(
        self,
        method: Callable[
            typing.Concatenate[_Conductor, _Context, _Arguments], None],
        ctxt: _Context,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> None:
        """Send a message to every conductor, and wait for none."""
        self._probe()
        channel = self._channel_of(method)
        try:
            contract.Client(
                channel.client.prepare(fanout=True),
                signing=channel.signing).cast(
                method, ctxt.of_actor(self._name), *args, **kwargs)
        except oslo_messaging.MessageDeliveryFailure:
            raise exception.ConductorUnavailable(
                method=method.__name__, timeout=self._timeout) from None

    def _channel_of(self, method: Callable[..., object]) -> _Channel:
        kinds = list(guard.caller_rules(method))
        return self._channel(
            kinds[0] if self._caller is None or self._caller not in kinds
            else self._caller)

    def _channel(self, kind: gpgpu_context.CallerKind) -> _Channel:
        """Return the way by which a kind of caller calls.

        :raises ConfigInvalid: calls are signed, and there is no key
        """
        found = self._channels.get(kind)
        if found is None:
            topic = rpc_transport.conductor_topic(self._conf, kind)
            found = self._channels[kind] = _Channel(
                client=rpc_transport.client(
                    self._transport, topic, conductor_contract.VERSION),
                signing=signing(self._conf, kind, topic, self._name))
        return found

    def _probe(self) -> None:
        # Only before the first call, which creates the queue for replies;
        # the queue reconnects to a broker by itself.
        if not self._probed:
            rpc_transport.probe(self._conf, self._transport)
            self._probed = True


# -- Lists of the calls that wait for a lock, and of those that are repeated.


HOSTS = 'hosts'
"""Key of calls that may lock many hosts, or one that they do not name."""

# The names of methods of rpc.conductor_contract.
REPEATED = frozenset((
    'claim', 'activate', 'release', 'report', 'changes_since'))
"""Methods that a client calls again while it waits, as a call or its answer
may be lost with a conductor or a broker.

Each call is signed anew, and none is executed later than the client waits.
What was done is not done twice: a claim has a key, a report a number.
"""

_OF_ORIGIN = frozenset((
    'report', 'claim', 'activate', 'abort', 'release', 'confirm_migration',
    'compare_allocations', 'clean_started', 'clean_finished',
    'clean_postponed'))
_OF_HOST = frozenset((
    'host_delete', 'host_drain', 'host_takeover', 'group_set',
    'group_links_set'))
_OF_HOSTS = frozenset((
    'variant_create', 'variant_set', 'variant_delete', 'vgpu_type_set',
    'assignment_end', 'hold_add', 'hold_remove', 'device_release',
    'device_accept', 'device_replace',
    'usage_mark_exported', 'repair_database'))


def lock_key(method: str, arguments: Mapping[str, typing.Any]) -> str | None:
    """Return whose lock a call may wait for.

    :param arguments: primitives
    :returns: the name of a host, or HOSTS; None if the call waits for no
        lock, and must be served while others wait
    """
    try:
        if method in _OF_ORIGIN:
            return str(arguments['origin']['host'])
        if method == 'begin_session':
            return str(arguments['request']['host'])
        if method in _OF_HOST:
            host = arguments['host']
            return HOSTS if host is None else str(host)
    except (KeyError, TypeError):
        # The endpoint refuses it.
        return None
    return HOSTS if method in _OF_HOSTS else None


# -- Client side of gpgpu-conductor's RPC API.
#
# Arguments, meaning, results and errors of each method are in
# rpc.conductor_contract.


_HOSTS_AT_ONCE = conductor_contract.HOSTS_AT_ONCE


@calls(_Conductor)
class ConductorAPI(ConductorClient, _Conductor):
    """Calls to any live conductor.

    Every method raises ConductorUnavailable if no conductor answers in time.
    See ConductorClient for the parameters.
    """

    def chosen(self, ctxt: _Context,
               choices: Sequence[scheduling_obj.SchedulerChoice]) -> None:
        """Send the choices to every conductor, and wait for none."""
        self._cast_to_all(_Conductor.chosen, ctxt, choices=choices)

    def answer(self, ctxt: _Context, host: str, question: str,
               usages: Sequence[claim_obj.Usage] = (),
               drifts: Sequence[drift.Drift] = ()) -> None:
        """Send an answer to every conductor: one of them asked."""
        self._cast_to_all(
            _Conductor.answer, ctxt, host=host, question=question,
            usages=usages, drifts=drifts)

    def examine_hosts(self, ctxt: _Context, hosts: Sequence[str],
                      repairs: Sequence[drift.Repair] = (),
                      ) -> tuple[drift.Drift, ...]:
        """Examine some hosts at once, one batch after the other."""
        return tuple(
            found for first in range(0, len(hosts), _HOSTS_AT_ONCE)
            for found in self._call_within(
                self._timeout + compute_api.REPAIR_TIMEOUT,
                _Conductor.examine_hosts, ctxt,
                hosts=hosts[first:first + _HOSTS_AT_ONCE], repairs=repairs))
