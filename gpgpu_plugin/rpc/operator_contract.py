# SPDX-License-Identifier: Apache-2.0
"""Contract of the operators' methods that no contract beside it has.

See rpc.conductor_contract, which has the other methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.objects import admin
from gpgpu_plugin.rpc import caller
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import pages

_Context = gpgpu_context.RequestContext


class Operators:
    """Methods for operators: variants, hosts, groups, assignments, devices."""

    @caller.operators(once=True)
    def variant_create(self, ctxt: _Context, variant: admin.VariantInfo,
                       ) -> admin.VariantInfo:
        """Create a variant and apply it to all known devices.

        If that takes longer than a part of ``[gpgpu] rpc_timeout``, the call
        returns, and the conductor goes on: ``hosts_pending`` counts the hosts
        that are left. The same holds for variant_set and variant_delete.

        :raises Invalid: malformed name, id, resource class or trait
        :raises Conflict: the name is taken, also after normalisation, or
            another variant matches the same devices equally well
        """

    @caller.operators()
    def variant_preview(self, ctxt: _Context,
                        variants: Sequence[admin.VariantInfo],
                        limit: int = pages.ALL, marker: str | None = None,
                        ) -> tuple[admin.VariantPreview, ...]:
        """Return a page of hosts that have devices of variants to create.

        :param limit: number of rows at most; a page has PAGE_SIZE at most
        :param marker: id of the host before the first one
        :raises Invalid: as for variant_create
        :raises Conflict: as for variant_create
        """

    @caller.operators()
    def variant_list(self, ctxt: _Context) -> tuple[admin.VariantInfo, ...]:
        """Return all variants, sorted by name."""

    @caller.operators()
    def variant_show(self, ctxt: _Context, name: str) -> admin.VariantInfo:
        """Return one variant.

        :raises NotFound: no variant has this name
        """

    @caller.operators(once=True)
    def variant_set(self, ctxt: _Context, variant: admin.VariantInfo,
                    before: admin.VariantInfo | None = None,
                    ) -> admin.VariantInfo:
        """Replace the fields of the variant that has this name.

        None of domain.variant.IDENTITY can change while its devices are
        assigned. All others can; instances keep what they have. Each claim
        goes by the new fields, also on a host that does not have them yet.

        :param before: as the caller read it; None: whatever it is
        :raises NotFound: no variant has this name
        :raises Conflict: somebody else changed it since, or as for
            variant_create and, where the identity changes, variant_delete
        """

    @caller.operators(once=True)
    def variant_delete(self, ctxt: _Context, name: str) -> None:
        """Delete a variant; its devices become unmanaged.

        Nobody can claim its devices any more. The variant remains until every
        host has applied the deletion.

        :raises NotFound: no variant has this name
        :raises Conflict: one of its devices is assigned, or it is being
            deleted already
        """

    @caller.operators()
    def vgpu_type_list(self, ctxt: _Context, host: str | None = None,
                       variant: str | None = None,
                       vgpu_type: str | None = None, *,
                       only_enabled: bool = False, limit: int = pages.ALL,
                       marker: str | None = None,
                       ) -> tuple[admin.VGPUTypeInfo, ...]:
        """Return a page of vGPU types, also passthrough, with their capacity.

        :param only_enabled: leave out those that are disabled
        :param limit: number of rows at most; a page has PAGE_SIZE at most
        :param marker: ``host:variant:type`` of the row before the first one
        :raises NotFound: no such host, variant or marker
        """

    @caller.operators(once=True)
    def vgpu_type_set(self, ctxt: _Context, variant: str, vgpu_type: str,
                      host: str | None = None, *, enabled: bool,
                      ) -> tuple[admin.VGPUTypeInfo, ...]:
        """Enable or disable a vGPU type; assigned vGPUs stay assigned.

        Without a host this is a change of the variant, which may reach hosts
        after the answer.

        :param host: None for all hosts, including those that report later
        :returns: the type on the first hosts, at most one page
        :raises NotFound: no GPU of the variant has such a type
        :raises Conflict: another type has the same resource class
        """

    @caller.operators()
    def host_list(self, ctxt: _Context, limit: int = pages.ALL,
                  marker: str | None = None) -> tuple[admin.HostInfo, ...]:
        """Return a page of the hosts, sorted by name.

        :param limit: as for vgpu_type_list
        :param marker: name of the host before the first one
        :raises NotFound: no such marker
        """

    @caller.operators()
    def host_show(self, ctxt: _Context, host: str) -> admin.HostInfo:
        """Return one host.

        :raises NotFound: the host never reported
        """

    @contract.longer(compute_api.PING_TIMEOUT)
    @caller.operators(once=True)
    def host_delete(self, ctxt: _Context, host: str, *, force: bool = False,
                    ) -> None:
        """Delete a host and its devices.

        :param force: delete also a host that reports its devices again
        :raises NotFound: the host never reported
        :raises Conflict: a device of the host is assigned, or without
            ``force`` its nova-compute runs or cannot be asked, or a device is
            dirty, cleaning, quarantined, disabled, or retired and still there
        """

    @caller.operators(once=True)
    def host_drain(self, ctxt: _Context, host: str, *, draining: bool,
                   reason: str | None = None) -> admin.HostInfo:
        """Stop offering the devices of a host, or offer them.

        Instances keep their devices. Idempotent: a host that is draining
        keeps the reason and the author that it has.

        :param reason: one line; None: none is given
        :raises NotFound: the host never reported
        :raises Invalid: the reason is no line of text
        """

    @caller.operators(once=True)
    def host_takeover(self, ctxt: _Context, host: str) -> None:
        """Let the next start of nova-compute, anywhere, speak for a host.

        :raises NotFound: the host never reported
        """

    @caller.operators()
    def group_list(self, ctxt: _Context, host: str | None = None,
                   variant: str | None = None, limit: int = pages.ALL,
                   marker: str | None = None) -> tuple[admin.GroupInfo, ...]:
        """Return a page of groups with their capacity.

        :param limit: as for vgpu_type_list
        :param marker: ``host:variant`` of the group before the first one
        :raises NotFound: no such host, variant or marker
        """

    @caller.operators(once=True)
    def group_set(self, ctxt: _Context, host: str, variant: str,
                  allocation_policy: str | None,
                  ) -> tuple[admin.GroupInfo, ...]:
        """Set the allocation policy of a group.

        :param allocation_policy: None for the variant's
        :returns: the group
        :raises NotFound: no such host or group
        :raises Invalid: not a domain.allocation.request.AllocationPolicy
        """

    @caller.operators(once=True)
    def group_links_set(self, ctxt: _Context, host: str, variant: str,
                        link_partitions: str | None,
                        ) -> tuple[admin.GroupInfo, ...]:
        """Set the link partitions of a group.

        :param link_partitions: a table of domain.link_table; None for that of
            the variant
        :returns: the group
        :raises NotFound: no such host or group
        :raises Invalid: no such table, or the host lacks GPUs that it names
        """

    @contract.longer(compute_api.USAGE_TIMEOUT)
    @caller.operators()
    def assignment_list(self, ctxt: _Context, host: str | None = None,
                        instance: str | None = None, limit: int = pages.ALL,
                        marker: str | None = None,
                        ) -> tuple[admin.AssignmentInfo, ...]:
        """Return a page of active assignments.

        The host of each determines whether it is used.

        :param instance: UUID of an instance
        :param limit: as for vgpu_type_list
        :param marker: UUID of the assignment before the first one
        :raises NotFound: no such host or marker
        """

    @contract.longer(compute_api.USAGE_TIMEOUT)
    @caller.operators(once=True)
    def assignment_end(self, ctxt: _Context, assignments: Sequence[str], *,
                       force: bool, actor: str,
                       ) -> tuple[admin.AssignmentInfo, ...]:
        """End assignments; their devices become dirty.

        :param assignments: UUIDs, all of one host
        :param force: end them also if they are used, or if the host does not
            answer
        :param actor: who ends them
        :returns: the assignments as they were before
        :raises NotFound: one of them has ended
        :raises Conflict: without ``force``, one is or may be used
        """

    @caller.hosts('host')
    @caller.operators()
    def device_list(self, ctxt: _Context, host: str | None = None,
                    variant: str | None = None, state: str | None = None,
                    used_by: str | None = None, project: str | None = None,
                    type: str | None = None, vgpu_type: str | None = None, *,
                    health: str | None = None, faulty: bool = False,
                    include_retired: bool = False, limit: int = pages.ALL,
                    marker: str | None = None) -> tuple[admin.DeviceInfo, ...]:
        """Return a page of devices, filtered by what is not None.

        :param state: shown state, see objects.admin.DeviceInfo
        :param used_by: UUID of an instance
        :param project: ID of the project of an instance
        :param type: type of variants
        :param vgpu_type: type of vGPUs
        :param health: of GPUs, see domain.health.Health
        :param faulty: only devices that are missing or quarantined, and GPUs
            whose health is degraded or failed
        :param include_retired: also retired devices, which are left out
            otherwise, unless ``state`` asks for them
        :param limit: as for vgpu_type_list
        :param marker: UUID of the device before the first one
        :raises Invalid: no such state, health or type of variants
        :raises NotFound: no such host, variant or marker
        """

    @caller.operators()
    def device_show(self, ctxt: _Context, device: str) -> admin.DeviceInfo:
        """Return one device.

        :param device: UUID
        :raises NotFound: no device has this UUID
        """

