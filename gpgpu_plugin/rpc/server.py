# SPDX-License-Identifier: Apache-2.0
"""RPC server of the conductor: queueing, limits, deadlines.

The broker drops a message that has waited there longer than its caller does.
What has been taken off the broker may still wait, for a thread or for a lock
of the database, and only the server's own clock can tell how long. Each call
says how long its caller waits, and one that is older is dropped before the
endpoint sees it. No call needs to be executed late, though one may be (as the
broker goes on to send to a process that is stopped): the caller knows that
the outcome is unknown, so

* nova-compute sends a release and a confirmation again until one is answered,
  and releases what it could not abort;
* it repeats each of its tasks (session, report, comparison, cleaning), and
  compares its assignments after a claim or an activation without an answer;
* nobody reads the answer to a scheduler or an operator.

Casts have no caller who waits and are never dropped.

A server that stops executes and answers what the broker gave it.
oslo.messaging acknowledges a call when it reads it, so that nothing can be
given back, and reads what is under way while it closes the connection, when
nobody executes it any more. A server therefore first has the broker confirm
that nothing more comes (basic.cancel), for which oslo.messaging has no
function. What it relies on inside of oslo.messaging is checked when a server
starts (_Source).
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import importlib.metadata
import operator
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import oslo_messaging
from oslo_log import log as logging
from oslo_messaging._drivers import impl_fake
from oslo_messaging.rpc import server

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.rpc import signature

LOG = logging.getLogger(__name__)

_Incoming = typing.Any
"""A message as oslo.messaging's drivers deliver it."""

_MARK = 'gpgpu_arrived_at'

_MAX_LENGTH = 100
"""Characters of a text in the log that anybody may have sent."""

_MINUTE, _CALLERS = 60, 64
"""Seconds between two lines about refused calls of a caller; how many."""

_REFUSALS = (exception.CallerRefused, exception.NotOwner)

_CONFIRMED_WITHIN = 5.0
"""Seconds that a broker may take to confirm that nothing more comes."""

_arrived_at: contextvars.ContextVar[float] = contextvars.ContextVar(
    'arrived_at')


Key = Callable[[str, Mapping[str, object]], str | None]
"""Function of a method's name and arguments; see
conductor_client.lock_key."""


def check_wanted(method: str, subject: str, wanted: float | None) -> None:
    """Refuse to go on with a call whose caller has given up.

    :param subject: what the call is about, for the message
    :param wanted: seconds that the caller waits; None: no limit is known
    :raises RequestExpired: they are over
    """
    passed = seconds_left()
    if wanted is not None and passed > wanted:
        raise exception.RequestExpired(
            method=method, subject=subject, wanted=wanted,
            waited=round(passed, 1))


def seconds_left() -> float:
    """Return how long ago the call that this thread handles arrived."""
    now = time.monotonic()
    return now - _arrived_at.get(now)


class CallGuard(typing.Protocol):
    """Check of each call before its method sees it; see rpc.guard."""

    def check(self, ctxt: Mapping[str, object], method: str,
              arguments: Mapping[str, object],
              ) -> gpgpu_context.Caller | None:
        """Return who calls, or raise CallerRefused."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Handled:
    """A call that was answered, refused or dropped.

    :ivar method: what the message says, of which nothing is known if the
        call was refused
    :ivar arguments: primitives; likewise
    :ivar seconds: since it arrived
    :ivar error: None: the method returned
    """

    method: object
    arguments: object
    seconds: float
    error: BaseException | None


Observer = Callable[[Handled], None]
"""Function that is called after each call, in the thread that handled it."""


def ignore(_handled: Handled) -> None:
    """Observe nothing."""


class Dispatcher(oslo_messaging.RPCDispatcher):
    """Dispatcher that drops calls that are late or not allowed.

    It also lets check_wanted know when the message arrived.

    :param guard: None: whoever can send a message may call all methods
    """

    def __init__(self, *args: object, guard: CallGuard | None = None,
                 observer: Observer = ignore) -> None:
        super().__init__(*args)
        self._guard = guard
        self._observer = observer
        self._lock = threading.Lock()
        self._logged: dict[str, float] = {}

    def dispatch(self, incoming: _Incoming) -> object:
        """Call the method that a message names.

        :returns: its result; if the call is signed, a signed answer
        """
        token = _arrived_at.set(
            getattr(incoming, _MARK, time.monotonic()))
        caller = None
        try:
            caller = self._check(incoming)
            result: object = super().dispatch(incoming)
        except oslo_messaging.ExpectedException as exc:
            error = exc.exc_info[1]
            self._observe(incoming, error)
            # The guard refuses some, and the method itself others.
            if isinstance(error, _REFUSALS):
                self._log(logging.WARNING, incoming.ctxt, error)
            if caller is None or error is None:
                raise
            return signature.error_answer(caller.answer_mac, error)
        except Exception as exc:
            self._observe(incoming, exc)
            if caller is None:
                raise
            LOG.exception('Cannot execute %s, signed with the key of %s %s',
                          incoming.message.get('method'), caller.kind,
                          caller.name)
            return signature.error_answer(caller.answer_mac, exc)
        else:
            self._observe(incoming, None)
            return (result if caller is None
                    else signature.result_answer(caller.answer_mac, result))
        finally:
            _arrived_at.reset(token)

    def _log(self, level: int, ctxt: Mapping[str, typing.Any],
             refusal: BaseException | None) -> None:
        """Log a refused call: each minute one of each caller, and of 64.

        What a caller says of itself may be invented.
        """
        try:
            caller = f'{level} {ctxt["signature"]["name"]:.{_MAX_LENGTH}}'
        except (KeyError, TypeError, ValueError):
            caller = f'{level}'
        now = time.monotonic()
        with self._lock:
            self._logged = {name: until for name, until
                            in self._logged.items() if now < until}
            if caller in self._logged or len(self._logged) == _CALLERS:
                return
            self._logged[caller] = now + _MINUTE
        LOG.log(level, '%s', refusal)

    def _observe(self, incoming: _Incoming,
                 error: BaseException | None) -> None:
        self._observer(Handled(
            method=incoming.message.get('method'),
            arguments=incoming.message.get('args'), seconds=seconds_left(),
            error=error))

    def _check(self, incoming: _Incoming) -> gpgpu_context.Caller | None:
        """Return who signed a call; None: calls are not signed.

        :raises ExpectedException: the call is late or not allowed
        """
        ctxt, message = incoming.ctxt, incoming.message
        method, wanted = message.get('method'), ctxt.get('wanted')
        arguments = message.get('args', {})
        try:
            # Nothing is known yet about who wrote this.
            if not (isinstance(method, str) and method.isidentifier()
                    and len(method) <= _MAX_LENGTH
                    and isinstance(wanted, float | int | None)
                    and isinstance(arguments, dict)):
                raise exception.CallerRefused(
                    method='a message', reason='it is malformed')
            check_wanted(
                method, f'request {ctxt.get("request_id")!a:.{_MAX_LENGTH}}',
                wanted)
            caller = None if self._guard is None else self._guard.check(
                ctxt, method, arguments)
        except exception.GPUPluginException as exc:
            if not isinstance(exc, _REFUSALS):
                self._log(logging.INFO, ctxt, exc)
            # An answer, not an error that oslo.messaging logs.
            raise oslo_messaging.ExpectedException() from exc
        # Also without a guard: nobody else may say who calls.
        ctxt[gpgpu_context.ContextSerializer.CALLER] = caller
        return caller


class _Source:
    """Source of a server's calls, behind the API of oslo.messaging.

    :raises HostNotReady: this version of oslo.messaging is made differently
    """

    def __init__(self, listener: object) -> None:
        [self._poller] = _inside(listener, '_poll_style_listener')
        # The in-process transport gives a call only to who asks for it.
        self._connection: typing.Any = None
        if not isinstance(self._poller, impl_fake.FakeListener):
            [borrowed] = _inside(self._poller, 'conn')
            [self._connection] = _inside(borrowed, 'connection')
            _, consumers, _ = _inside(
                self._connection, '_connection_lock', '_consumers',
                'set_transport_socket_timeout')
            for consumer in consumers:
                _inside(consumer, 'cancel', 'callback')

    def end(self) -> Iterator[Sequence[_Incoming]]:
        """Have the broker send nothing more, and return what it sent before.

        The thread that reads must have ended.
        """
        if self._connection is not None:
            with self._connection._connection_lock:
                self._cancel()
        while incoming := self._poller.poll():
            yield incoming

    def _cancel(self) -> None:
        broker = self._connection.connection
        consumers = self._connection._consumers
        self._connection.set_transport_socket_timeout(_CONFIRMED_WITHIN)
        try:
            for consumer, tag in consumers.items():
                # It reads until the broker has confirmed.
                consumer.cancel(tag)
        except (*broker.connection_errors, *broker.channel_errors) as exc:
            # It gives what was not acknowledged to another server.
            LOG.info('The broker did not confirm that this server stops: %s',
                     exc)
        for consumer in consumers:
            consumer.callback = operator.methodcaller('requeue')


def _inside(owner: object, *names: str) -> list[typing.Any]:
    """Return attributes of oslo.messaging that are not in its API.

    :raises HostNotReady: one of them does not exist
    """
    try:
        return [getattr(owner, name) for name in names]
    except AttributeError as exc:
        version = importlib.metadata.version('oslo.messaging')
        raise exception.HostNotReady(
            path=f'oslo.messaging {version}',
            reason=f'{exc}, without which calls would be lost when this '
                   f'service stops; install another release of it') from None


class CallServer(server.RPCServer):
    """Server that notes when a message is taken off the broker.

    Its ``stop`` and ``wait`` execute and answer all that was taken.

    :param key: what a call may wait for; None: nothing
    :param threads: calls that it handles at once
    :param repeated: methods whose callers repeat a call that takes long
    """

    _LIMIT = 4
    """Calls with the same key that run at once."""

    def __init__(self, *args: object, key: Key, threads: int,
                 repeated: Collection[str] = ()) -> None:
        super().__init__(*args)
        self._key = key
        self._repeated = repeated
        self._bulkhead = Bulkhead[Sequence[_Incoming]](
            self._LIMIT, waiting_threads(threads))
        # The server's own start and stop must not be overridden: it finds the
        # ones that have to run in an order by a mark.
        executor: typing.Any = getattr(self, '_executor_cls')  # noqa: B009
        self._executor_cls = lambda max_workers: executor(max_workers=threads)

    def _on_incoming(self, incoming: Sequence[object]) -> None:
        # Called by the thread that reads from the broker, before the message
        # waits for a thread that handles it.
        [message] = incoming
        setattr(message, _MARK, time.monotonic())
        super()._on_incoming(incoming)

    def _create_listener(self) -> object:
        listener = super()._create_listener()
        source = _Source(listener)
        stop = listener.stop

        def stop_all() -> None:
            stop()
            for incoming in source.end():
                self._on_incoming(incoming)
        listener.stop = stop_all
        return listener

    def _process_incoming(self, incoming: Sequence[_Incoming]) -> None:
        """Handle a message in a thread of the executor, or let it wait.

        One that waits is not in the executor, so that its thread is free.
        """
        [message] = incoming
        key = self._key(message.message.get('method'),
                        message.message.get('args', {}))
        identity = self._identity(message)
        if key is None and identity is None:
            super()._process_incoming(incoming)
            return
        turn = self._bulkhead.enter(key, incoming, identity)
        while turn is not None:
            try:
                super()._process_incoming(turn.call)
            except Exception:
                # The calls that wait for this one need a thread.
                LOG.exception('Cannot handle a message')
            turn = self._bulkhead.leave(turn)

    def _identity(self, message: _Incoming) -> object:
        """Return what a call has in common with its repeats.

        :returns: None: the call is never repeated
        """
        method = message.message.get('method')
        request_id = message.ctxt.get('request_id')
        # One request may make several calls of a method at a time.
        return (method, request_id, repr(message.message.get('args'))) if (
            isinstance(request_id, str) and isinstance(method, str)
            and method in self._repeated) else None


def waiting_threads(threads: int) -> int:
    """Return how many threads of a server may wait for locks.

    A quarter of them is left for calls that wait for nothing.
    """
    return max(1, threads - max(1, threads // 4))


# -- Limits on the calls that a server handles at once, in total and per key.
#
# Without them, calls that wait for one locked host could occupy all threads of
# a conductor. Nor could a caller that repeats a call which takes long.


T = typing.TypeVar('T')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn(typing.Generic[T]):
    """A call that may begin.

    :ivar key: what it may wait for, such as a host; None: nothing
    :ivar identity: equal for all repeats of one call
    """

    key: str | None
    identity: object
    call: T


class Bulkhead(typing.Generic[T]):
    """Calls that run, and calls that wait for those to end.

    A call that waits here has no thread. The keys take turns; the calls of
    one key begin in the order in which they came. A call takes the place of an
    earlier one that it repeats, whose caller waits for it no longer, and
    begins after that one if it runs: then it finds what that one has done.

    :param limit: calls of one key that run at once
    :param total: calls with a key that run at once
    """

    def __init__(self, limit: int, total: int) -> None:
        self._limit = limit
        self._total = total
        self._lock = threading.Lock()
        self._running: collections.Counter[str] = collections.Counter()
        self._waiting: dict[str, dict[object, T]] = {}
        # What runs, and the last repeat of it.
        self._repeats: dict[object, T | None] = {}

    def enter(self, key: str | None, call: T,
              identity: object = None) -> Turn[T] | None:
        """Return the call, or None if it has to wait.

        A later leave() returns a call that has to wait.

        :param identity: see Turn; None: the call is never repeated
        """
        identity = object() if identity is None else identity
        with self._lock:
            if identity in self._repeats:
                self._repeats[identity] = call
                return None
            if key is None or self._may_begin(key):
                return self._begin(key, identity, call)
            self._waiting.setdefault(key, {})[identity] = call
            return None

    def leave(self, turn: Turn[T]) -> Turn[T] | None:
        """End a call, and return the one that begins instead, if any."""
        with self._lock:
            repeat = self._repeats.pop(turn.identity)
            if turn.key is not None:
                self._running[turn.key] -= 1
                if not self._running[turn.key]:
                    del self._running[turn.key]
            if repeat is not None:
                return self._begin(turn.key, turn.identity, repeat)
            key = next(filter(self._may_begin, self._waiting), None)
            if key is None:
                return None
            calls = self._waiting.pop(key)
            identity = next(iter(calls))
            call = calls.pop(identity)
            if calls:
                # The last one in line.
                self._waiting[key] = calls
            return self._begin(key, identity, call)

    def _may_begin(self, key: str) -> bool:
        return (self._running[key] < self._limit
                and self._running.total() < self._total)

    def _begin(self, key: str | None, identity: object, call: T) -> Turn[T]:
        if key is not None:
            self._running[key] += 1
        self._repeats[identity] = None
        return Turn(key=key, identity=identity, call=call)
