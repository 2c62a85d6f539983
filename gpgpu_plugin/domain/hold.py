# SPDX-License-Identifier: Apache-2.0
"""Holds: reasons for which a device is not offered, whatever its state is.

A hold of a host holds all its devices. One of a GPU holds its VFs and the
vGPUs on it, too. On an assigned device
it waits: the assignment goes on, and nothing needs to be remembered for its
end.
"""

from __future__ import annotations

import enum
from collections.abc import Collection


class HoldKind(enum.StrEnum):
    """Kind of a hold; a device has each at most once.

    ``retired``: an operator takes it out of the cloud for good.
    ``quarantined``: an operator withdraws it. ``failed``: its cleaning failed,
    it failed while a guest was to get it, or its state contradicted its
    assignments. ``identity_changed``: a scan found it in the place of another
    device. ``disabled``: an operator does not offer it for now.
    """

    RETIRED = 'retired'
    QUARANTINED = 'quarantined'
    FAILED = 'failed'
    IDENTITY_CHANGED = 'identity_changed'
    DISABLED = 'disabled'


class HostHoldKind(enum.StrEnum):
    """Kind of a hold of a host; a host has each at most once.

    ``restored``: the database was restored from a backup, and the host has not
    reported what it has since. ``draining``: an operator lets no instance get
    a device of it. ``service_disabled``: nova-compute is disabled in Nova,
    which then selects the host for nothing; what it offers stays the same.
    """

    RESTORED = 'restored'
    DRAINING = 'draining'
    SERVICE_DISABLED = 'service_disabled'


KINDS = (*HoldKind, *HostHoldKind)
"""Kinds of all holds."""

QUARANTINE = frozenset({
    HoldKind.QUARANTINED, HoldKind.FAILED, HoldKind.IDENTITY_CHANGED})
"""Kinds for which a device is shown as quarantined."""

WITHDRAWING = QUARANTINE | {HoldKind.RETIRED}
"""Kinds that keep a device from being cleaned, and after which it is cleaned.

``device release`` removes them.
"""

DECIDED = frozenset({HoldKind.QUARANTINED, HoldKind.RETIRED})
"""Kinds with which an operator withdraws a device.

They follow the number of its card.
"""

BY_OPERATORS = (HoldKind.QUARANTINED, HoldKind.DISABLED, HoldKind.RETIRED)
"""Kinds that operators set."""


def is_withdrawn(kinds: Collection[str]) -> bool:
    """Return whether one of the kinds withdraws a device."""
    return not WITHDRAWING.isdisjoint(kinds)


def shown_as(holds: Collection[str]) -> str | None:
    """Return the word for holds that withdraw a device; None: none does."""
    if HoldKind.RETIRED in holds:
        return str(HoldKind.RETIRED)
    return (None if QUARANTINE.isdisjoint(holds)
            else str(HoldKind.QUARANTINED))
