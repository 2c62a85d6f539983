# SPDX-License-Identifier: Apache-2.0
"""Fit of a guest on the NUMA nodes of this host, near to its GPUs.

Nova's claim for a build or a move selects the nodes first, and knows nothing
about GPUs. The plugin's claim has all sets of nodes that can take the guest,
and the conductor selects one of them together with the GPUs. Only then the
guest is moved there in Nova's records. The host's lock is not held during the
claim; if another guest has taken the nodes meanwhile, the claim is denied and
Nova tries another host.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable

from nova import context as nova_context
from nova import objects
from nova import utils
from nova.compute import resource_tracker
from nova.virt import hardware
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import host_numa
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.virt import exception as virt_exception

LOG = logging.getLogger(__name__)
_F = typing.TypeVar('_F', bound=Callable[..., object])
_synchronized: Callable[[_F], _F] = utils.synchronized(
    resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuestFit:
    """NUMA fit of a guest that is built, rebuilt or unshelved here.

    :ivar flavor: the flavor that Nova claimed for
    :ivar node_name: name of the compute node
    :ivar movable: whether its nodes may still change; not those of a guest
        that is rebuilt in place
    """

    virtapi: nova_types.VirtAPI
    instance: nova_types.Instance
    flavor: nova_types.Flavor
    image: nova_types.ImageMeta | None
    node_name: str
    movable: bool = True

    def _guest(self) -> nova_types.NUMATopology | None:
        """Return the guest's topology as Nova claimed it here."""
        return self.instance.numa_topology

    def _save_guest(self, topology: nova_types.NUMATopology) -> None:
        self.instance.numa_topology = topology
        self.instance.save()

    def _pci_requests(self) -> nova_types.PCIRequests | None:
        return self.instance.pci_requests

    def extend(self, request: claim_obj.ClaimRequest,
               ) -> claim_obj.ClaimRequest:
        """Return a claim that names the host's sockets and other nodes."""
        node = self._node()
        if request.numa_nodes is None or node is None:
            return request
        host = _topology(node)
        return dataclasses.replace(
            request, numa_choices=self._choices(request),
            sockets=tuple(tuple(sorted(nodes))
                          for nodes in host_numa.sockets(host)))

    def follow(self, request: claim_obj.ClaimRequest,
               claim: claim_obj.Claim) -> None:
        """Move the guest to the nodes that were selected with its GPUs.

        :raises ClaimDenied: they cannot take it any more, and its GPUs must
            be near
        """
        nodes = claim.numa_nodes
        if nodes is None or nodes == request.numa_nodes:
            return
        if self._move(nodes):
            return
        if request.request.restricts_numa:
            raise exception.ClaimDenied(
                instance=request.instance_uuid, host=request.host,
                reason=str(request_mod.Reason.NUMA_POLICY_REQUIRED),
                detail=f'another guest has taken NUMA nodes {nodes} '
                       f'meanwhile, on which the GPUs are')
        LOG.info('Instance %s stays on NUMA nodes %s, far from its GPUs: '
                 'another guest has taken nodes %s meanwhile',
                 request.instance_uuid, request.numa_nodes, nodes)

    def _tracker(self) -> nova_types.NovaResourceTracker:
        return self.virtapi._compute.rt

    def _node(self) -> nova_types.ComputeNode | None:
        """Return Nova's record of this host if it has NUMA nodes."""
        if self._guest() is None:
            return None
        node = self._tracker().compute_nodes.get(self.node_name)
        return node if node is not None and node.numa_topology else None

    @_synchronized
    def _choices(self, request: claim_obj.ClaimRequest,
                 ) -> tuple[tuple[int, ...], ...]:
        """Return the other sets of nodes that can take the guest."""
        node, guest = self._node(), self._guest()
        if (node is None or guest is None or not self._can_move(node)
                or request.request.numa_affinity is None):
            return ()
        found = (tuple(sorted(nodes)) for nodes
                 in host_numa.choices(_topology(node), guest))
        return tuple(nodes for nodes in found if nodes != request.numa_nodes
                     and self._fit(node, nodes) is not None)

    def _can_move(self, node: nova_types.ComputeNode) -> bool:
        """Return whether GPUs alone decide about the guest's nodes.

        Nova's own PCI devices are chosen already, and it does not say here
        which networks are near to which node.
        """
        requests = self._pci_requests()
        return self.movable and not (requests and requests.requests) and (
            not any(cell.network_metadata.physnets
                    or cell.network_metadata.tunneled
                    for cell in _topology(node).cells
                    if 'network_metadata' in cell))

    def _fit(self, node: nova_types.ComputeNode, nodes: tuple[int, ...],
             ) -> nova_types.NUMATopology | None:
        """Return the guest's topology on some nodes; None if it cannot be."""
        wanted = hardware.numa_get_constraints(
            self.flavor, self.image)
        fit: nova_types.NUMATopology | None = (
            hardware.numa_fit_instance_to_host(
                host_numa.confined(self._without_guest(node), nodes), wanted,
                provider_mapping=None,
                limits=objects.NUMATopologyLimits(
                    cpu_allocation_ratio=node.cpu_allocation_ratio,
                    ram_allocation_ratio=node.ram_allocation_ratio)))
        return fit

    def _without_guest(self, node: nova_types.ComputeNode,
                       ) -> nova_types.HostNUMATopology:
        free: nova_types.HostNUMATopology = (
            hardware.numa_usage_from_instance_numa(
                _topology(node), self._guest(), free=True))
        return free

    @_synchronized
    def _move(self, nodes: tuple[int, ...]) -> bool:
        """Move the guest in Nova's records if there is still room.

        As Nova's own claim, it is saved before the lock is left: Nova counts
        usage by what is saved.
        """
        node = self._node()
        fit = None if node is None else self._fit(node, nodes)
        if node is None or fit is None:
            return False
        free = self._without_guest(node)
        self._save_guest(fit)
        node.numa_topology = hardware.numa_usage_from_instance_numa(
            free, fit)._to_json()
        self._tracker()._update(nova_context.get_admin_context(), node)
        return True


class MoveFit(GuestFit):
    """NUMA fit of a guest that is resized or cold migrated to this host."""

    def _context(self) -> nova_types.MigrationContext:
        assert self.instance.migration_context is not None
        return self.instance.migration_context

    def _guest(self) -> nova_types.NUMATopology | None:
        return self._context().new_numa_topology

    def _save_guest(self, topology: nova_types.NUMATopology) -> None:
        self._context().new_numa_topology = topology
        self.instance.save()

    def _pci_requests(self) -> nova_types.PCIRequests | None:
        return self._context().new_pci_requests


class EvacuationFit(GuestFit):
    """NUMA fit of a guest that is evacuated to this host.

    While the driver creates the guest, Nova has applied the migration context
    to the instance in memory only, and undoes that afterwards. In the database
    the instance still has the topology of its failed host, so only the
    migration context is saved.
    """

    def _save_guest(self, topology: nova_types.NUMATopology) -> None:
        assert self.instance.migration_context is not None
        saved: nova_types.Instance = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), self.instance.uuid,
            expected_attrs=['migration_context'])
        assert saved.migration_context is not None
        saved.migration_context.new_numa_topology = topology
        saved.save()
        self.instance.migration_context.new_numa_topology = topology
        self.instance.numa_topology = topology

    def _fit(self, node: nova_types.ComputeNode, nodes: tuple[int, ...],
             ) -> nova_types.NUMATopology | None:
        """Return the guest's topology on some nodes; None if it cannot be.

        Nova's periodic update does not count the guest of a server that was in
        ERROR before its evacuation. Then there is no usage to move to other
        nodes, and the guest stays where Nova placed it.
        """
        if self.instance.uuid not in self._tracker().tracked_migrations:
            return None
        return super()._fit(node, nodes)


def fit_of(build: virt_exception.Build, virtapi: nova_types.VirtAPI,
           instance: nova_types.Instance,
           image: nova_types.ImageMeta | None) -> GuestFit:
    """Return the fit of a guest that is spawned on this host."""
    is_evacuation = build is virt_exception.Build.EVACUATION
    # An evacuated instance still has the name of its failed node; this host
    # has one node.
    name = (next(iter(virtapi._compute.rt.compute_nodes), None)
            if is_evacuation else instance.node)
    return (EvacuationFit if is_evacuation else GuestFit)(
        virtapi=virtapi, instance=instance, flavor=instance.flavor,
        image=image, node_name=name or '',
        movable=build is not virt_exception.Build.REBUILD)


def _topology(node: nova_types.ComputeNode) -> nova_types.HostNUMATopology:
    topology: nova_types.HostNUMATopology = (
        objects.NUMATopology.obj_from_db_obj(node.numa_topology))
    return topology
