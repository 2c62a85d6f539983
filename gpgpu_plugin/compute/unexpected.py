# SPDX-License-Identifier: Apache-2.0
"""Assignments that Nova's resource tracker does not expect on this host.

A move that failed leaves devices assigned on a host that nobody calls any
more. Nova's resource tracker knows, after each of its periodic updates, which
instances are on the host and which migrations to or from it are not over.
Where the host's book has more, a comparison with Nova's database is due. That
comparison decides what is released; this module only reads memory.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable

from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.objects import claim as claim_obj

PATIENCE = 30
"""Seconds for which a difference must last: while a claim is made or ended,
Nova and the plugin differ for a moment."""

REPEAT = 3600
"""Seconds after which a difference that is still there is found again."""

_Finding = tuple[str, frozenset[str]]
"""An instance, and all its assignments on the host."""


class UnexpectedAssignments:
    """Differences between the book and Nova's resource tracker.

    A comparison may find that Nova still needs the assignments, as those of a
    migration that was interrupted. If Nova deletes the instance afterwards,
    the difference is the same as before. Therefore it is found again.

    :param clock: returns the seconds of a monotonic clock
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[_Finding, float] = {}

    def find(self, assignments: Iterable[claim_obj.Assignment],
             nova: nova_types.NovaResourceTracker,
             builds: Collection[str]) -> list[str]:
        """Return instances with a lasting difference, each once an hour.

        :param assignments: all in the host's book
        :param builds: UUIDs of instances that are being built here
        """
        now = self._clock()
        found = _unexpected(assignments, nova, builds)
        self._due = {finding: self._due.get(finding, now + PATIENCE)
                     for finding in found}
        lasting = [finding for finding, due in self._due.items()
                   if due <= now]
        self._due.update(dict.fromkeys(lasting, now + REPEAT))
        return sorted(instance_uuid for instance_uuid, _ in lasting)


def _unexpected(assignments: Iterable[claim_obj.Assignment],
                nova: nova_types.NovaResourceTracker,
                builds: Collection[str]) -> set[_Finding]:
    by_instance: dict[str, list[claim_obj.Assignment]] = {}
    for assignment in assignments:
        by_instance.setdefault(
            assignment.instance_uuid, []).append(assignment)
    return {
        (instance_uuid, frozenset(assignment.uuid for assignment in its))
        for instance_uuid, its in by_instance.items()
        if instance_uuid not in builds
        and instance_uuid not in nova.tracked_migrations
        and (instance_uuid not in nova.tracked_instances
             or len({assignment.migration_uuid for assignment in its}) > 1)}
