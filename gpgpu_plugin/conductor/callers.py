# SPDX-License-Identifier: Apache-2.0
"""Callers of the conductor: their keys, and what they author."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Collection

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import transaction
from gpgpu_plugin.rpc import signature

_Context = gpgpu_context.RequestContext
_Kind = gpgpu_context.CallerKind


def host_author(ctxt: _Context, host: str) -> transaction.Author:
    """Return the author of what a host's call changes.

    :param host: whom the call names; where calls are signed, its key proved it
    """
    return _author(ctxt, f'{_Kind.HOST} {host}')


def operator_author(ctxt: _Context) -> transaction.Author:
    """Return the author of what an operator's call changes."""
    return _author(ctxt, f'{_Kind.OPERATOR} {signed_operator(ctxt)}')


def signed_operator(ctxt: _Context) -> str:
    """Return the operator who calls, for reasons and the ledger."""
    return with_signature(ctxt, _said(ctxt))


def scheduler_author(ctxt: _Context) -> transaction.Author:
    """Return the author of what a scheduler's call reports."""
    caller = ctxt.caller
    return _author(ctxt, f'{_Kind.SCHEDULER} '
                         f'{_said(ctxt) if caller is None else caller.name}')


def with_signature(ctxt: _Context, actor: str) -> str:
    """Return who acts, with the key that proves it.

    Without the key it is only what the caller says about itself.
    """
    caller = ctxt.caller
    return actor if caller is None else (
        f'{actor} (key of {caller.kind} {caller.name})')


def _said(ctxt: _Context) -> str:
    return ctxt.actor or 'unknown'


def _author(ctxt: _Context, actor: str) -> transaction.Author:
    return transaction.Author(actor=actor, request_id=ctxt.global_id)


# -- Keys of callers and executed calls in the database, for rpc.guard.


VALID_FOR = 10
"""Seconds for which a conductor does not ask the database again about a key:
a revoked one may be used for so long."""


_FORGET_AFTER = 60
"""Seconds between two deletions of calls that are too old to be executed."""


class CallerKeys:
    """Keys and executed calls in the database. Thread-safe.

    :param clock: returns seconds
    """

    def __init__(self, db: api.Database,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._clock = clock
        self._lock = threading.Lock()
        self._forget_at = 0.0
        self._valid_until: dict[tuple[str, str, int], float] = {}

    def is_valid(self, kind: str, name: str, number: int) -> bool:
        """Return whether a key was made and is not revoked."""
        key = kind, name, number
        now = self._clock()
        with self._lock:
            if now < self._valid_until.get(key, now):
                return True
        with self._db.reader() as session:
            found = caller_key_db.is_valid(session, kind, name, number)
        with self._lock:
            if found:
                self._valid_until[key] = now + VALID_FOR
            else:
                self._valid_until.pop(key, None)
        return found

    def serve(self, nonce: str | None, seconds: float,
              again: exception.CallerRefused) -> None:
        """Prepare for the call that this thread executes (guard.KeyStore)."""
        caller_key_db.serve(None)
        if nonce is None:
            return
        now = self._clock()
        with self._lock:
            is_due = now >= self._forget_at
            if is_due:
                self._forget_at = now + _FORGET_AFTER
        if is_due:
            # Not with the call: MariaDB would lock the gaps that others need.
            self._db.write(caller_key_db.forget)
        caller_key_db.serve(caller_key_db.Call(
            nonce=nonce, seconds=seconds, again=again))


def of_session(db: api.Database, masters: Collection[signature.MasterKey],
               host: str) -> signature.CallerKey | None:
    """Return the key with which a host's nova-compute signs now.

    :param masters: empty if calls are not signed
    :returns: None: calls are not signed
    :raises NotFound: no signed call began its session, or the key is revoked
    """
    if not masters:
        return None
    with db.reader() as session:
        found = caller_key_db.of_session(session, host)
    for master in masters:
        if found and master.id == found[1]:
            return master.derive(
                gpgpu_context.CallerKind.HOST, host, found[0])
    raise exception.NotFound(
        kind='valid key of the session of host', name=host)


def make_keys(db: api.Database, master: signature.MasterKey,
              kind: gpgpu_context.CallerKind,
              name: str) -> signature.CallerKey:
    """Make a new key of a caller; older ones stay valid.

    :raises Invalid: the name cannot be written into a key file
    """
    master.derive(kind, name, 0)
    number = db.write(lambda session: caller_key_db.add(
        session, kind, name, master.id))
    return master.derive(kind, name, number)
