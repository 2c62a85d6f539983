#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Client side of gpgpu-conductor's RPC API: one typed method a call.

All that the compute side, the scheduler and the CLI may know of the
conductor is here. Version history:

* 1.0 - first version
"""

from __future__ import annotations

import typing
from collections.abc import Sequence

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import inventory as inventory_obj
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import transport as rpc_transport

VERSION = '1.0'

_Context = gpgpu_context.RequestContext


class ConductorAPI:
    """Calls to any live conductor.

    Every method raises ConductorUnavailable when none answers in time, and
    what the conductor raised otherwise (classes of gpgpu_plugin.exception).

    :param timeout: seconds; default ``[gpgpu] rpc_timeout``
    """

    def __init__(self, conf: cfg.ConfigOpts, transport: typing.Any = None,
                 timeout: float | None = None) -> None:
        self._timeout = timeout or conf.gpgpu.rpc_timeout
        self._conf = conf
        self._transport = transport or rpc_transport.get_transport(conf)
        self._client = rpc_transport.client(
            self._transport, rpc_transport.conductor_topic(conf), VERSION,
            timeout=self._timeout)
        self._probed = False

    def _call(self, ctxt: _Context, method: str, *, longer: float = 0,
              **kwargs: object) -> object:
        self._probe()
        timeout = self._timeout + longer
        try:
            return self._client.prepare(timeout=timeout).call(
                ctxt, method, **{
                    name: codec.to_primitive(value)
                    for name, value in kwargs.items()})
        except (oslo_messaging.MessagingTimeout,
                oslo_messaging.MessageDeliveryFailure):
            raise exception.ConductorUnavailable(
                method=method, timeout=timeout) from None

    def _probe(self) -> None:
        # Before the first call alone: it makes the queue for replies, which
        # afterwards finds its way back to a broker by itself.
        if not self._probed:
            rpc_transport.probe(self._conf, self._transport)
            self._probed = True

    # -- the compute side ---------------------------------------------------

    def report(self, ctxt: _Context, report: report_obj.HostReport,
               ) -> inventory_obj.HostInventory:
        """Store a host's scan; idempotent.

        :raises Conflict: the host is known with another node UUID, or the
            node UUID under another host
        """
        return codec.from_primitive(
            inventory_obj.HostInventory,
            self._call(ctxt, 'report', report=report))

    def host_inventory(self, ctxt: _Context, host: str,
                       ) -> inventory_obj.HostInventory:
        """What the host's groups offer now.

        :raises NotFound: the host never reported
        """
        return codec.from_primitive(
            inventory_obj.HostInventory,
            self._call(ctxt, 'host_inventory', host=host))

    def claim(self, ctxt: _Context, request: claim_obj.ClaimRequest,
              ) -> claim_obj.Claim:
        """Grant devices, all or none; the same key and request again
        returns the same devices.

        :raises ClaimDenied: with a ``reason`` of domain.request.Reason
        """
        return codec.from_primitive(
            claim_obj.Claim, self._call(ctxt, 'claim', request=request))

    def activate(self, ctxt: _Context, assignments: Sequence[str],
                 driver_capacities: report_obj.DriverCapacities | None = None,
                 ) -> inventory_obj.HostInventory:
        """The guest runs: provisioning -> assigned, the lease ends.

        Idempotent for assignments that are active already.

        :param assignments: UUIDs, all of one host
        :param driver_capacities: of the cards of vGPUs among them
        :raises NotFound: one of them is not active any more
        """
        return codec.from_primitive(
            inventory_obj.HostInventory,
            self._call(ctxt, 'activate', assignments=list(assignments),
                       driver_capacities=driver_capacities))

    def abort(self, ctxt: _Context, assignments: Sequence[str], *,
              touched: bool, fault: str | None = None,
              driver_capacities: report_obj.DriverCapacities | None = None,
              ) -> inventory_obj.HostInventory | None:
        """End claims that were not activated; ended ones are passed over.

        :param touched: hardware may have been changed: the devices become
            dirty, else available
        :param fault: what is wrong with the hardware: they are quarantined
        :param driver_capacities: of the cards of vGPUs among them
        :returns: None when no such assignment ever existed
        """
        return codec.from_primitive(
            inventory_obj.HostInventory | None,  # type: ignore[arg-type]
            self._call(
                ctxt,
                'abort',
                assignments=list(assignments),
                touched=touched,
                fault=fault,
                driver_capacities=driver_capacities,
            ),
        )

    def release(self, ctxt: _Context, assignments: Sequence[str],
                ) -> inventory_obj.HostInventory | None:
        """End assignments, provisioning or assigned: devices become dirty.

        Ended ones are passed over, whoever holds the device now.
        """
        return codec.from_primitive(
            inventory_obj.HostInventory | None,  # type: ignore[arg-type]
            self._call(ctxt, 'release', assignments=list(assignments)))

    def host_assignments(self, ctxt: _Context, host: str,
                         ) -> tuple[claim_obj.Assignment, ...]:
        """All active assignments on a host."""
        return codec.from_primitive(
            tuple[claim_obj.Assignment, ...],
            self._call(ctxt, 'host_assignments', host=host))

    def compare_allocations(
            self, ctxt: _Context, host: str,
            allocations: dict[str, dict[str, dict[str, int]]],
            assignments: Sequence[str]) -> inventory_obj.HostInventory:
        """Tell what Placement has allocated, so that what is held without an
        allocation is reserved.

        :param allocations: units by UUID of a provider of the host, by
            consumer and resource class; providers that are left out stay
            as they are
        :param assignments: UUIDs of those that were known before Placement
            was asked; of later ones its answer says nothing
        :raises NotFound: the host never reported
        """
        return codec.from_primitive(
            inventory_obj.HostInventory, self._call(
                ctxt, 'compare_allocations', host=host,
                allocations=allocations, assignments=list(assignments)))

    def instance_assignments(self, ctxt: _Context, instance_uuid: str,
                             ) -> tuple[claim_obj.Assignment, ...]:
        """All active assignments of an instance, on every host."""
        return codec.from_primitive(
            tuple[claim_obj.Assignment, ...],
            self._call(ctxt, 'instance_assignments',
                       instance_uuid=instance_uuid))

    def clean_tasks(self, ctxt: _Context, host: str,
                    ) -> tuple[claim_obj.CleanTask, ...]:
        """Devices of the host that are dirty, or whose cleaning a restart of
        the host may have interrupted (cleaning)."""
        return codec.from_primitive(
            tuple[claim_obj.CleanTask, ...],
            self._call(ctxt, 'clean_tasks', host=host))

    def clean_started(self, ctxt: _Context, device_uuid: str, token: str,
                      ) -> None:
        """dirty -> cleaning; one that is cleaning under this token already
        begins anew.

        :raises Conflict: the device is in another state or cleaning
        """
        self._call(ctxt, 'clean_started', device_uuid=device_uuid,
                   token=token)

    def clean_finished(
        self,
        ctxt: _Context,
        device_uuid: str,
        token: str,
        *,
        passed: bool,
        evidence: str,
        driver_capacities: report_obj.DriverCapacities | None = None,
    ) -> inventory_obj.HostInventory:
        """cleaning -> available or quarantined.

        :param driver_capacities: of the card, if it is a vGPU
        :raises Conflict: the device is not in this cleaning
        """
        return codec.from_primitive(
            inventory_obj.HostInventory,
            self._call(ctxt, 'clean_finished', device_uuid=device_uuid,
                       token=token, passed=passed, evidence=evidence,
                       driver_capacities=driver_capacities))

    # -- the scheduler ------------------------------------------------------

    def changes_since(self, ctxt: _Context, generation: int,
                      ) -> inventory_obj.Changes:
        """Hosts that changed after a generation; 0 gives all hosts.

        No change is skipped, however late its transaction commits; a host
        may be given again though it did not change.
        """
        return codec.from_primitive(
            inventory_obj.Changes,
            self._call(ctxt, 'changes_since', generation=generation))

    # -- operators ----------------------------------------------------------

    def variant_create(self, ctxt: _Context, variant: admin.VariantInfo,
                       ) -> admin.VariantInfo:
        """Create a variant and apply it to all known devices.

        :raises Invalid: malformed name, id, class or trait
        :raises Conflict: the name is taken, also after normalisation, or
            another variant matches the same devices equally well
        """
        return codec.from_primitive(
            admin.VariantInfo,
            self._call(ctxt, 'variant_create', variant=variant))

    def variant_list(self, ctxt: _Context) -> tuple[admin.VariantInfo, ...]:
        """All variants, by name."""
        return codec.from_primitive(
            tuple[admin.VariantInfo, ...], self._call(ctxt, 'variant_list'))

    def variant_show(self, ctxt: _Context, name: str) -> admin.VariantInfo:
        """One variant. :raises NotFound: no such name"""
        return codec.from_primitive(
            admin.VariantInfo, self._call(ctxt, 'variant_show', name=name))

    def variant_set(self, ctxt: _Context, variant: admin.VariantInfo,
                    ) -> admin.VariantInfo:
        """Replace a variant's fields; its name tells which.

        :raises Conflict: in use (a device of it is held), or as for create
        """
        return codec.from_primitive(
            admin.VariantInfo,
            self._call(ctxt, 'variant_set', variant=variant))

    def variant_delete(self, ctxt: _Context, name: str) -> None:
        """Delete a variant; its devices become unmanaged.

        :raises Conflict: a device of it is held by an instance
        """
        self._call(ctxt, 'variant_delete', name=name)

    def vgpu_type_list(self, ctxt: _Context, host: str | None = None,
                       variant: str | None = None,
                       ) -> tuple[admin.VGPUTypeInfo, ...]:
        """Types of groups with their capacity; ``passthrough`` is one.

        :raises NotFound: no such host or variant
        """
        return codec.from_primitive(
            tuple[admin.VGPUTypeInfo, ...],
            self._call(ctxt, 'vgpu_type_list', host=host, variant=variant))

    def vgpu_type_set(self, ctxt: _Context, variant: str, vgpu_type: str,
                      host: str | None = None, *, enabled: bool,
                      ) -> tuple[admin.VGPUTypeInfo, ...]:
        """Offer a type, or offer it no more; who holds one keeps it.

        :param host: None: on all hosts, those to come as well
        :raises NotFound: no card of the variant has such a type
        :raises Conflict: another type has the same resource class
        """
        return codec.from_primitive(
            tuple[admin.VGPUTypeInfo, ...],
            self._call(ctxt, 'vgpu_type_set', variant=variant,
                       vgpu_type=vgpu_type, host=host, enabled=enabled))

    def host_list(self, ctxt: _Context) -> tuple[admin.HostInfo, ...]:
        """All hosts, by name."""
        return codec.from_primitive(
            tuple[admin.HostInfo, ...], self._call(ctxt, 'host_list'))

    def host_show(self, ctxt: _Context, host: str) -> admin.HostInfo:
        """One host. :raises NotFound: it never reported"""
        return codec.from_primitive(
            admin.HostInfo, self._call(ctxt, 'host_show', host=host))

    def host_delete(self, ctxt: _Context, host: str, *,
                    force: bool = False) -> None:
        """Forget a host; one whose nova-compute runs reports anew.

        :param force: also one whose nova-compute runs, or cannot be asked
        :raises NotFound: it never reported
        :raises Conflict: an instance holds a device, or without ``force``
            nova-compute runs or cannot be asked
        """
        # The conductor itself waits for nova-compute.
        self._call(ctxt, 'host_delete', host=host, force=force,
                   longer=0 if force else compute_api.PING_TIMEOUT)

    def group_list(self, ctxt: _Context, host: str | None = None,
                   variant: str | None = None,
                   ) -> tuple[admin.GroupInfo, ...]:
        """Groups with their capacity."""
        return codec.from_primitive(
            tuple[admin.GroupInfo, ...],
            self._call(ctxt, 'group_list', host=host, variant=variant))

    def group_set(self, ctxt: _Context, host: str, variant: str,
                  allocation_policy: str) -> admin.GroupInfo:
        """Set a group's allocation policy.

        :raises Invalid: not a domain.request.AllocationPolicy
        """
        return codec.from_primitive(
            admin.GroupInfo,
            self._call(ctxt, 'group_set', host=host, variant=variant,
                       allocation_policy=allocation_policy))

    def device_list(self, ctxt: _Context, host: str | None = None,
                    variant: str | None = None, state: str | None = None,
                    used_by: str | None = None,
                    ) -> tuple[admin.DeviceInfo, ...]:
        """Devices; ``state`` filters by shown state.

        :raises Invalid: no such state
        """
        return codec.from_primitive(
            tuple[admin.DeviceInfo, ...],
            self._call(ctxt, 'device_list', host=host, variant=variant,
                       state=state, used_by=used_by))

    def device_show(self, ctxt: _Context, device: str) -> admin.DeviceInfo:
        """One device by UUID. :raises NotFound: no such device"""
        return codec.from_primitive(
            admin.DeviceInfo, self._call(ctxt, 'device_show', device=device))

    def device_set(self, ctxt: _Context, device: str, *,
                   enabled: bool) -> admin.DeviceInfo:
        """Offer a device, or offer it no more; a holder keeps it.

        :raises Conflict: it is a place for an mdev, not a card or VF
        """
        return codec.from_primitive(
            admin.DeviceInfo,
            self._call(ctxt, 'device_set', device=device, enabled=enabled))

    def device_release(self, ctxt: _Context, device: str) -> admin.DeviceInfo:
        """Operator's release of a quarantined device: it becomes dirty and
        is cleaned.

        :raises InvalidTransition: it is not quarantined
        """
        return codec.from_primitive(
            admin.DeviceInfo,
            self._call(ctxt, 'device_release', device=device))
