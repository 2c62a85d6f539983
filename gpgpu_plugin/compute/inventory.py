# SPDX-License-Identifier: Apache-2.0
"""The newest inventory from the conductor, and its way to Placement."""

from __future__ import annotations

import threading
from collections.abc import Callable

from nova import context as nova_context
from oslo_log import log as logging

from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import placement
from gpgpu_plugin.objects import inventory as inventory_obj

LOG = logging.getLogger(__name__)


class OfferedInventory:
    """The newest inventory of the host, which is written to Placement.

    :param host: name of the nova-compute service
    :param client: Nova's report client (``virtapi.reportclient``)
    :param is_frozen: returns whether the providers must not change now
    :param acknowledge: keeps the generation of an answer
    """

    def __init__(self, host: str, client: nova_types.ReportClient,
                 is_frozen: Callable[[], bool],
                 acknowledge: Callable[[int], None] = lambda generation: None,
                 ) -> None:
        self._acknowledge = acknowledge
        self._host = host
        self._client = client
        self._is_frozen = is_frozen
        self._lock = threading.Lock()
        self._newest: inventory_obj.HostInventory | None = None
        self._in_tree = False
        # What was written to Placement, by the provider's UUID.
        self._written: dict[str, inventory_obj.GroupInventory] = {}

    @property
    def newest(self) -> inventory_obj.HostInventory | None:
        """Return the conductor's newest answer; None before the first one."""
        return self._newest

    def accept(self, inventory: inventory_obj.HostInventory | None) -> None:
        """Store the newer of the known inventory and the conductor's answer.

        An answer about another host, for which this host claimed, is dropped.
        """
        if inventory is None or inventory.host != self._host:
            return
        with self._lock:
            if (self._newest is None
                    or inventory.generation >= self._newest.generation):
                self._newest = inventory
                self._acknowledge(inventory.generation)

    def provider_uuids(self) -> set[str]:
        """Return the UUIDs of the resource providers of the host's groups."""
        newest = self._newest
        return newest.provider_uuids() if newest is not None else set()

    def apply(self, tree: nova_types.ProviderTree, node: str) -> None:
        """Put the groups into Nova's tree; makes no call.

        What the tree has stays while the providers must not change.

        :raises ValueError: the tree does not have the node
        """
        if self._in_tree and self._is_frozen():
            return
        placement.apply(tree, node, self._newest)
        self._in_tree = True

    def push(self) -> None:
        """Write to Placement what differs from it; never raises.

        Nothing is written while the providers must not change, nor before
        Nova made the compute node's provider: its own update writes the
        groups then.
        """
        if self._newest is None or not self._in_tree or self._is_frozen():
            return
        try:
            self._write()
        except Exception:
            # Nova's exceptions and keystoneauth's have no common base. The
            # report client's cache still differs, so the next iteration of
            # the resource tracker writes.
            LOG.exception('Cannot write the GPU groups of %s to Placement; '
                          'tried again later', self._host)

    @placement.under_nova_lock
    def push_anew(self) -> None:
        """Read the providers from Placement, and write what differs.

        Nova's cache does not know what others changed in Placement.

        :raises Exception: Placement does not answer, or refuses
        """
        inventory = self._newest
        if inventory is None or not self._in_tree or self._is_frozen():
            return
        context = nova_context.get_admin_context()
        placement.fetch(context, self._client, inventory)
        written: dict[str, inventory_obj.GroupInventory] = {}
        placement.push(context, self._client, inventory, written)
        self._written |= written

    @placement.under_nova_lock
    def _write(self) -> None:
        # Read under the lock: Nova writes what it was given under it.
        inventory = self._newest
        assert inventory is not None
        context = nova_context.get_admin_context()
        placement.push(context, self._client, inventory, self._written)
        placement.withdraw(context, self._client, inventory, self._written)
