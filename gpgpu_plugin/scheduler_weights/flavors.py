# SPDX-License-Identifier: Apache-2.0
"""Flavors of the cloud, which the mix of requests assumes.

They stand for all requests until enough have arrived. Afterwards they count
as a hundred more requests beside those (domain.weighing).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator

from nova import context as nova_context
from nova import objects
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj
from gpgpu_plugin.scheduler_filters import conductor_messages
from gpgpu_plugin.scheduler_weights import catalogue

LOG = logging.getLogger(__name__)

PAGE = 200
"""Flavors of one query."""


def read() -> tuple[scheduling_obj.CountedRequests, ...]:
    """Return one request of each kind that the cloud's flavors make.

    nova-scheduler calls it once when it starts, where Nova's own code reads
    the aggregates from the same database.

    :returns: empty, if the flavors cannot be read
    """
    try:
        kinds = dict.fromkeys(_kinds(_flavors()))
    except Exception:
        # Errors of Nova, oslo.db and SQLAlchemy have no common base class,
        # and the scheduler works without.
        LOG.exception('Cannot read the flavors; GpuWeigher assumes requests '
                      'for one, two, four and eight GPUs until it knows '
                      'others')
        return ()
    return tuple(scheduling_obj.CountedRequests(kind, 1.0) for kind in kinds)


def _flavors() -> Iterator[nova_types.Flavor]:
    """Yield the flavors that are not disabled, page by page."""
    context = nova_context.get_admin_context()
    marker = None
    for _ in range(catalogue.MAX_FLAVORS // PAGE):
        page = list(objects.FlavorList.get_all(
            context, filters={'disabled': False}, limit=PAGE,
            marker=marker))
        yield from page
        if len(page) < PAGE:
            return
        marker = page[-1].flavorid


def _kinds(flavors: Iterable[nova_types.Flavor],
           ) -> Iterator[scheduling_obj.RequestKind]:
    for flavor in flavors:
        try:
            yield conductor_messages.request_kind(
                flavor, request_mod.from_extra_specs(flavor.extra_specs))
        except exception.Invalid as exc:
            LOG.debug('Flavor %(flavor)s stands for no request: %(reason)s',
                      {'flavor': flavor.name, 'reason': exc})
