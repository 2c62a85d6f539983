# SPDX-License-Identifier: Apache-2.0
"""Rebuilds that fail in place, after which Nova removes the allocation.

Nova's rebuild_instance takes such a failure for that of an evacuation,
wherever it happened: before the driver was called, as when the image cannot be
written to the volume of a volume-backed server, in the driver, or after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from oslo_log import log as logging

from gpgpu_plugin.compute import nova_types

LOG = logging.getLogger(__name__)


def notify(tracker: nova_types.NovaResourceTracker,
           removing: Callable[[nova_types.Instance], None]) -> None:
    """Call a function before Nova removes the allocation of a failed rebuild.

    :param tracker: the resource tracker of this nova-compute
    :param removing: called with the instance; its errors are logged
    """
    nova_delete = tracker.delete_allocation_for_evacuated_instance

    @functools.wraps(nova_delete)
    def delete_allocation_for_evacuated_instance(
            context: nova_types.Context, instance: nova_types.Instance,
            node: str, node_type: str = 'source') -> None:
        try:
            removing(instance)
        except Exception:
            LOG.exception('Cannot reserve the GPUs of instance %s in '
                          'Placement at once, although Nova removes their '
                          'allocation; the next comparison with Nova does',
                          instance.uuid)
        nova_delete(context, instance, node, node_type=node_type)
    tracker.delete_allocation_for_evacuated_instance = (  # type: ignore[method-assign]
        delete_allocation_for_evacuated_instance)
