# SPDX-License-Identifier: Apache-2.0
"""States of hosts."""

from __future__ import annotations

import datetime
import enum
import math


class HostState(enum.StrEnum):
    """Whether instances can come to a host.

    ``up``: its nova-compute called the conductors lately. ``silent``: it has
    not called for three ``[gpgpu] digest_interval``, so that nothing of the
    host can be claimed or cleaned. ``restored``: the database was restored
    from a backup, and the host has not reported what it has since; nothing of
    it can be claimed until then. ``disabled``: it calls, but an operator has
    disabled it in Nova, which then selects the host for nothing.
    ``draining``: no instance gets a device of it (``host drain``).
    """

    UP = 'up'
    SILENT = 'silent'
    RESTORED = 'restored'
    DISABLED = 'disabled'
    DRAINING = 'draining'


def utc(heard_at: float) -> str:
    """Return the time of a host's call, as operators see it."""
    return datetime.datetime.fromtimestamp(
        heard_at, datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')


def minutes_to_report(digest_interval: float) -> int:
    """Return within which time a host that runs notices a restore.

    An interval may be half as long again, and an iteration follows.
    """
    return math.ceil(2 * digest_interval / 60)
