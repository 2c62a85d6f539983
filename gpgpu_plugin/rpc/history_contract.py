# SPDX-License-Identifier: Apache-2.0
"""The part of the conductor's RPC contract that reads the history.

See rpc.conductor_contract, which has the other methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.domain import ledger
from gpgpu_plugin.objects import event as event_obj
from gpgpu_plugin.objects import usage as usage_obj
from gpgpu_plugin.rpc import caller
from gpgpu_plugin.rpc import pages

_Context = gpgpu_context.RequestContext


class History:
    """Methods for operators: cleanings, usage, events."""

    @pages.sized(ledger.PAGE_SIZE)
    @caller.operators()
    def device_history(self, ctxt: _Context, device: str,
                       limit: int = pages.ALL, marker: str | None = None,
                       ) -> tuple[ledger.Record, ...]:
        """Return a page of the ledger of a device, in the order of time.

        :param device: UUID, also of a device that was deleted
        :param limit: as for vgpu_type_list
        :param marker: number of the record before the first one
        :raises NotFound: no device has or had this UUID
        :raises Invalid: the marker is no number
        """

    @caller.operators()
    def device_ledger_head(self, ctxt: _Context, device: str) -> ledger.Head:
        """Return what the ledger of a device must end with.

        :raises NotFound: no device has or had this UUID
        """

    @caller.operators()
    def usage_list(self, ctxt: _Context, query: usage_obj.UsageQuery,
                   limit: int = pages.ALL, marker: str | None = None,
                   ) -> tuple[usage_obj.UsageInfo, ...]:
        """Return a page of usage in the order in which it was recorded.

        :param limit: as for vgpu_type_list
        :param marker: UUID of the usage before the first one
        :raises NotFound: no such marker
        :raises Invalid: the period ends before it begins
        """

    @caller.operators()
    def usage_summary(self, ctxt: _Context, query: usage_obj.UsageQuery,
                      by: Sequence[str], limit: int = pages.ALL,
                      marker: str | None = None,
                      ) -> tuple[usage_obj.UsageSum, ...]:
        """Return a page of sums of usage, sorted by their values.

        :param by: objects.usage.UsageKey of which each sum has the values
        :param limit: as for vgpu_type_list
        :param marker: JSON of the values of the sum before the first one
        :raises Invalid: no such key or marker, or as for usage_list
        """

    @caller.operators()
    def usage_unexported(self, ctxt: _Context, limit: int = pages.ALL,
                         marker: str | None = None,
                         ) -> tuple[usage_obj.UsageInfo, ...]:
        """Return a page of ended usage that is not marked as exported.

        It is in the order of its end. A usage whose end is committed late is
        in no page after the marker, but in those of the next export.

        :param limit: as for vgpu_type_list
        :param marker: UUID of the usage before the first one
        :raises NotFound: no such marker
        """

    @caller.operators(once=True)
    def usage_mark_exported(self, ctxt: _Context, usages: Sequence[str],
                            ) -> int:
        """Mark ended usage as exported, so that ``db purge`` may delete it.

        :param usages: UUIDs of what was written, not the last one alone:
            others may have ended before it since they were listed
        :returns: number of those that were not marked before
        """

    @caller.operators()
    def event_list(self, ctxt: _Context, wanted: event_obj.EventFilter, *,
                   limit: int = pages.ALL, marker: str | None = None,
                   ) -> tuple[event_obj.EventInfo, ...]:
        """Return a page of the history, newest first.

        :param limit: as for vgpu_type_list
        :param marker: id of the event before the first one
        :raises Invalid: no such kind, or the marker is no number
        """
