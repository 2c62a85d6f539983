# SPDX-License-Identifier: Apache-2.0
"""Lists of the calls that wait for a lock, and of those that are repeated."""

from __future__ import annotations

import typing
from collections.abc import Mapping

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


def key(method: str, arguments: Mapping[str, typing.Any]) -> str | None:
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
