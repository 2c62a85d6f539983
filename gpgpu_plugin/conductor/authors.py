# SPDX-License-Identifier: Apache-2.0
"""Authors of the events that a call causes."""

from __future__ import annotations

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.db import author

_Context = gpgpu_context.RequestContext
_Kind = gpgpu_context.CallerKind


def of_host(ctxt: _Context, host: str) -> author.Author:
    """Return the author of what a host's call changes.

    :param host: whom the call names; where calls are signed, its key proved it
    """
    return _author(ctxt, f'{_Kind.HOST} {host}')


def of_operator(ctxt: _Context) -> author.Author:
    """Return the author of what an operator's call changes."""
    return _author(ctxt, f'{_Kind.OPERATOR} {operator(ctxt)}')


def operator(ctxt: _Context) -> str:
    """Return the operator who calls, for reasons and the ledger."""
    return signed(ctxt, _said(ctxt))


def of_scheduler(ctxt: _Context) -> author.Author:
    """Return the author of what a scheduler's call reports."""
    caller = ctxt.caller
    return _author(ctxt, f'{_Kind.SCHEDULER} '
                         f'{_said(ctxt) if caller is None else caller.name}')


def signed(ctxt: _Context, actor: str) -> str:
    """Return who acts, with the key that proves it.

    Without the key it is only what the caller says about itself.
    """
    caller = ctxt.caller
    return actor if caller is None else (
        f'{actor} (key of {caller.kind} {caller.name})')


def _said(ctxt: _Context) -> str:
    return ctxt.actor or 'unknown'


def _author(ctxt: _Context, actor: str) -> author.Author:
    return author.Author(actor=actor, request_id=ctxt.global_id)
