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
"""GPUs for any virt driver of Nova: ``class X(GpuMixin, SomeDriver)``.

The mixin does not ask which driver it is over. What differs from host to
host is the backend, which the final class names.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import typing

import nova.conf
from nova import exception as nova_exception
from nova.compute import task_states
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin import extensions
from gpgpu_plugin.compute import manager as compute_manager
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.compute import worker
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.host import base
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_api
from gpgpu_plugin.rpc import transport as rpc_transport
from gpgpu_plugin.virt import exception as virt_exception
from gpgpu_plugin.virt import moves
from gpgpu_plugin.virt import nova_managed_devices
from gpgpu_plugin.virt import orphans
from gpgpu_plugin.virt import release
from gpgpu_plugin.virt import steps

LOG = logging.getLogger(__name__)
CONF = nova.conf.CONF

SUPPORTED_NOVA = 34


def check_nova_version(found: str) -> None:
    """Refuse a Nova that the plugin was not written for.

    :raises ConfigInvalid: naming both versions
    """
    if found.partition('.')[0] != str(SUPPORTED_NOVA):
        raise exception.ConfigInvalid(
            option='compute_driver',
            reason=f'this version of gpgpu_plugin works with Nova '
                   f'{SUPPORTED_NOVA} (2026.2), and this is Nova {found}')


class GpuMixin:
    """Claims before spawn, releases after destroy, reports in between.

    :cvar gpu_host: entry in the namespace ``gpgpu_plugin.hosts``
    """

    gpu_host: str

    def __init__(self, virtapi: typing.Any, *args: typing.Any,
                 **kwargs: typing.Any) -> None:
        check_nova_version(importlib.metadata.version('nova'))
        conf_gpgpu.register_opts(CONF)
        conf_gpgpu.check(CONF)
        super().__init__(virtapi, *args, **kwargs)  # type: ignore[call-arg]
        self._gpu_client = virtapi.reportclient
        self._gpu_tracker: resource_tracker.ResourceTracker | None = None
        self._gpu_worker: worker.Worker | None = None
        self._gpu_transport: typing.Any = None
        self._gpu_server: typing.Any = None
        self._gpu_ends = False
        # Instances whose guests are made or destroyed on our own behalf.
        self._gpu_at_work: dict[str, moves.Selector] = {}

    @property
    def gpu_tracker(self) -> resource_tracker.ResourceTracker:
        """The host's tracker; there from init_host on."""
        if self._gpu_tracker is None:
            raise RuntimeError('init_host was not called')
        return self._gpu_tracker

    # -- life of the service ------------------------------------------------

    def init_host(self, host: str) -> None:
        """Ours first: Nova may destroy guests before its first inventory."""
        self._gpu_transport = rpc_transport.get_transport(CONF)
        kind = extensions.load(extensions.HOSTS, self.gpu_host)
        tracker = resource_tracker.ResourceTracker(
            CONF,
            host,
            kind.for_host(CONF, host),
            conductor_api.ConductorAPI(CONF, self._gpu_transport),
            self._gpu_client,
            functools.partial(orphans.is_orphaned, guests=self._gpu_guests),
        )
        self._gpu_tracker = tracker
        self._gpu_worker = worker.Worker(
            self._gpu_run_once, CONF.gpgpu.scan_interval, f'gpgpu-{host}')
        # Claims of a dead predecessor end before anything is built.
        self._gpu_worker.run_once()
        super().init_host(host)  # type: ignore[misc]
        self._gpu_find_node()
        self._gpu_worker.run_once()
        # Nova starts guests next, as after a reboot of the host.
        tracker.restore()
        try:
            self._gpu_check_conflicts()
        except exception.ConfigInvalid:
            self._gpu_stop()
            raise
        self._gpu_worker.start()
        self._gpu_wake()

    def _gpu_check_conflicts(self) -> None:
        nova_managed = nova_managed_devices.NovaManagedDevices(CONF)
        if not nova_managed:
            return
        tracker = self.gpu_tracker
        try:
            devices = tracker.api.device_list(
                gpgpu_context.admin(), host=tracker.host)
            scan = tracker.backend.scan()
        except (exception.ConductorUnavailable, exception.NotFound) as exc:
            # It starts all the same, and its groups offer nothing until the
            # conductor answers.
            LOG.warning('What Nova gives away itself was not compared with '
                        'the GPUs of this host: %s', exc)
        else:
            nova_managed.check(
                devices, scan, tracker.inventory.resource_classes())
        # A variant may come later that matches some of it.
        tracker.exclude(nova_managed.options)

    def _gpu_run_once(self) -> float | None:
        self._gpu_serve()
        return self.gpu_tracker.run_once()

    def _gpu_serve(self) -> None:
        """Serve the host's RPC topic as soon as there is a broker."""
        if self._gpu_server is not None or self._gpu_ends:
            return
        try:
            rpc_transport.probe(CONF, self._gpu_transport)
        except exception.BrokerUnavailable as exc:
            LOG.warning('%s; tried again later', exc)
            return
        server = rpc_transport.server(
            self._gpu_transport, rpc_transport.compute_topic(CONF),
            self.gpu_tracker.host,
            [compute_manager.ComputeManager(
                self._gpu_refresh, self._gpu_assignments_changed)])
        server.start()
        self._gpu_server = server

    def _gpu_guests(self) -> set[str]:
        return set(self.list_instance_uuids())  # type: ignore[attr-defined]

    def _gpu_find_node(self) -> None:
        [(uuid, name)] = (
            self.get_nodenames_by_uuid().items())  # type: ignore[attr-defined]
        self.gpu_tracker.set_node(name, uuid)

    def _gpu_refresh(self) -> None:
        self.gpu_tracker.refresh()
        self._gpu_wake()

    def _gpu_assignments_changed(self) -> None:
        self.gpu_tracker.assignments_changed()
        self._gpu_wake()

    def _gpu_wake(self) -> None:
        if self._gpu_worker is not None:
            self._gpu_worker.wake()

    def cleanup_host(self, host: str) -> None:
        """Stop what init_host started."""
        self._gpu_stop()
        super().cleanup_host(host)  # type: ignore[misc]

    def _gpu_stop(self) -> None:
        # Nova gives little time for this; the worker may be at work for long.
        self._gpu_ends = True
        server, self._gpu_server = self._gpu_server, None
        if server is not None:
            server.stop()
            server.wait()
        if self._gpu_worker is not None:
            self._gpu_worker.stop()
            self._gpu_worker = None

    def update_provider_tree(self, provider_tree: typing.Any, nodename: str,
                             allocations: typing.Any = None) -> None:
        """Nova's own resources, then our groups below the node."""
        super().update_provider_tree(  # type: ignore[misc]
            provider_tree, nodename, allocations)
        if self._gpu_tracker is not None and (
                self._gpu_tracker.update_provider_tree(
                    provider_tree, nodename)):
            self._gpu_wake()

    # -- spawn --------------------------------------------------------------

    def spawn(self, context: typing.Any, instance: typing.Any,
              image_meta: typing.Any, injected_files: typing.Any,
              admin_password: typing.Any, allocations: typing.Any,
              *args: typing.Any, **kwargs: typing.Any) -> None:
        """Nova's spawn, between claim and activation if GPUs are asked."""
        nova_spawn = functools.partial(
            super().spawn, context, instance,  # type: ignore[misc]
            image_meta, injected_files, admin_password, allocations, *args,
            **kwargs)
        if instance.uuid in self._gpu_at_work:
            # FakeDriver's finish_migration.
            nova_spawn()
            return
        with self._gpu_errors(instance):
            request = request_mod.from_extra_specs(
                instance.flavor.extra_specs)
        if not request:
            nova_spawn()
            return
        run = steps.Spawn(
            tracker=self.gpu_tracker,
            request=self._gpu_claim_request(
                instance, request, allocations, instance.numa_topology),
            spawn=nova_spawn,
            destroy=functools.partial(
                super().destroy, context, instance,  # type: ignore[misc]
                kwargs.get('network_info'), kwargs.get('block_device_info')),
            keeps=self._gpu_is_rebuild(instance, here=True),
            allocation_removal=self._gpu_is_rebuild(instance, here=False))
        with (self._gpu_errors(instance), self._gpu_working(instance)):
            try:
                steps.execute(run)
            except Exception:
                if run.keeps:
                    # Nova does so though the instance stays (its
                    # rebuild_instance takes it for an evacuation).
                    self.gpu_tracker.allocation_removed(instance.uuid)
                raise

    @contextlib.contextmanager
    def _gpu_working(self, instance: typing.Any,
                     selector: moves.Selector = moves.any_role,
                     ) -> typing.Iterator[None]:
        """While we make or end a guest: Nova's own calls of spawn and destroy
        within neither claim nor release.

        :param selector: which of the instance's assignments the guest gets
        """
        self._gpu_at_work[instance.uuid] = selector
        try:
            with self.gpu_tracker.building(instance.uuid):
                yield
        finally:
            del self._gpu_at_work[instance.uuid]
            self._gpu_wake()

    # A driver may destroy the guest to start it: nothing is given back then.

    def reboot(self, context: typing.Any, instance: typing.Any,
               network_info: typing.Any, reboot_type: str,
               *args: typing.Any, **kwargs: typing.Any) -> None:
        """Nova's, with the devices that the instance has; a hard reboot ends
        what a failed migration left here."""
        with self._gpu_working(
                instance, moves.current(instance, self.gpu_tracker)):
            self._gpu_ready(instance)
            super().reboot(  # type: ignore[misc]
                context, instance, network_info, reboot_type, *args, **kwargs)
            if reboot_type == 'HARD':
                moves.settle(self.gpu_tracker, instance)

    def power_on(self, context: typing.Any, instance: typing.Any,
                 *args: typing.Any, **kwargs: typing.Any) -> None:
        """Nova's, with the devices that the instance has."""
        with self._gpu_working(
                instance, moves.current(instance, self.gpu_tracker)):
            self._gpu_ready(instance)
            super().power_on(context, instance, *args, **kwargs)  # type: ignore[misc]

    def resume_state_on_host_boot(self, context: typing.Any,
                                  instance: typing.Any, *args: typing.Any,
                                  **kwargs: typing.Any) -> None:
        """Nova's, with the devices that the instance has."""
        with self._gpu_working(
                instance, moves.current(instance, self.gpu_tracker)):
            super().resume_state_on_host_boot(  # type: ignore[misc]
                context, instance, *args, **kwargs)

    def _gpu_ready(self, instance: typing.Any) -> None:
        """Make ready again what was lost meanwhile, as when a card's driver
        was loaded anew, or after us.

        :raises HostError: something is still missing, while the guest, if it
            runs, is as it was
        """
        self.gpu_tracker.restore(filter(
            self._gpu_at_work[instance.uuid],
            self.gpu_tracker.assignments.of_instance(instance.uuid)))
        self.gpu_attachments(instance)

    def gpu_attachments(self, instance: typing.Any) -> list[base.Attachment]:
        """What the instance's guest gets, in the order in which it always
        sees it.

        :raises HostError: something of it is not there
        """
        held = self.gpu_tracker.assignments.of_instance(instance.uuid)
        if not held:
            return []
        selector = self._gpu_at_work.get(
            instance.uuid) or moves.current(instance, self.gpu_tracker)
        return [
            self.gpu_tracker.backend.attachment(base.HostDevice.of(each))
            for each in sorted(held, key=lambda each: each.stable_id)
            if selector(each)]

    def _gpu_claim_request(self, instance: typing.Any,
                           request: request_mod.Request,
                           allocations: typing.Any, topology: typing.Any,
                           **destination: typing.Any,
                           ) -> claim_obj.ClaimRequest:
        return claim_obj.ClaimRequest(
            instance_uuid=instance.uuid,
            **{'host': self.gpu_tracker.host, **destination},
            project_id=instance.project_id, user_id=instance.user_id,
            numa_nodes=None if topology is None else tuple(
                sorted({cell.id for cell in topology.cells})),
            request=request, allocated={
                provider: dict(allocation['resources'])
                for provider, allocation in (allocations or {}).items()})

    @contextlib.contextmanager
    def _gpu_errors(self, instance: typing.Any,
                    ) -> typing.Iterator[None]:
        """Our errors as those by which Nova knows what to do (a build goes
        to the next host)."""
        try:
            yield
        except (exception.ClaimDenied, exception.Invalid) as exc:
            reason = (exc.msg_fmt % exc.kwargs
                      if isinstance(exc, exception.ClaimDenied)
                      else f'{request_mod.Reason.EXTRA_SPEC_INVALID}: {exc}')
            if self._gpu_is_rebuild(instance, here=False):
                raise nova_exception.ComputeResourcesUnavailable(
                    reason=reason) from exc
            raise virt_exception.GPUClaimDenied(reason=reason) from exc
        except exception.GpgpuException as exc:
            if self._gpu_is_rebuild(instance, here=True):
                # On ComputeResourcesUnavailable Nova says that nothing
                # happened, while the guest is gone already.
                raise nova_exception.InstanceDeployFailure(
                    reason=str(exc)) from exc
            raise nova_exception.ComputeResourcesUnavailable(
                reason=str(exc)) from exc

    def _gpu_is_rebuild(self, instance: typing.Any, *, here: bool) -> bool:
        """Whether it is a rebuild in place, or else an evacuation."""
        return (instance.task_state in (
            task_states.REBUILDING, task_states.REBUILD_SPAWNING)
            and (instance.host == self.gpu_tracker.host) is here)

    # -- destroy ------------------------------------------------------------

    def destroy(self, context: typing.Any, instance: typing.Any,
                *args: typing.Any, **kwargs: typing.Any) -> None:
        """The guest first, then what it held, if Nova gives it up."""
        super().destroy(  # type: ignore[misc]
            context, instance, *args, **kwargs)
        if self._gpu_tracker is None or instance.uuid in self._gpu_at_work:
            return
        what = release.on_destroy(
            vm_state=instance.vm_state, task_state=instance.task_state,
            deleted=bool(instance.deleted), instance_host=instance.host,
            this_host=self._gpu_tracker.host)
        if what is release.Release.ALL:
            # Elsewhere Nova forces the allocation's end.
            once = (CONF.reclaim_instance_interval > 0
                    or instance.host != self._gpu_tracker.host)
            self._gpu_tracker.release_instance(
                instance.uuid,
                allocation_removal=instance.uuid if once else None,
            )
        elif what is release.Release.DESTINATION:
            self._gpu_tracker.release_instance(
                instance.uuid,
                moves.destination_of(moves.migration_of(instance)))
        self._gpu_wake()

    # -- resize and cold migration ------------------------------------------

    def migrate_disk_and_power_off(self, context: typing.Any,
                                   instance: typing.Any, dest: str,
                                   flavor: typing.Any, *args: typing.Any,
                                   **kwargs: typing.Any) -> typing.Any:
        """Nova's, on the source, after the claim for the destination."""
        try:
            claim = self._gpu_claim_destination(context, instance, flavor)
        except Exception as exc:
            # The guest runs on where it is, and Nova gives the destination's
            # allocation back; on any other class it would be ERROR.
            raise nova_exception.InstanceFaultRollback(exc) from exc
        try:
            return super().migrate_disk_and_power_off(  # type: ignore[misc]
                context, instance, dest, flavor, *args, **kwargs)
        except Exception:
            if claim is not None:
                moves.unclaim(self.gpu_tracker, claim)
            raise

    def _gpu_claim_destination(self, context: typing.Any,
                               instance: typing.Any, flavor: typing.Any,
                               ) -> claim_obj.Claim | None:
        request = request_mod.from_extra_specs(flavor.extra_specs)
        if not request:
            return None
        migration = moves.migration_of(instance)
        # The instance's own allocations are the destination's by now.
        allocations = self._gpu_client.get_allocs_for_consumer(
            context, instance.uuid)['allocations']
        return self.gpu_tracker.api.claim(
            gpgpu_context.admin(), self._gpu_claim_request(
                instance, request, allocations,
                instance.migration_context.new_numa_topology,
                host=migration.dest_compute,
                role=claim_obj.ClaimRole.DESTINATION,
                migration_uuid=migration.uuid))

    def finish_migration(self, context: typing.Any, migration: typing.Any,
                         instance: typing.Any, disk_info: typing.Any,
                         network_info: typing.Any, image_meta: typing.Any,
                         resize_instance: typing.Any,
                         allocations: typing.Any, *args: typing.Any,
                         **kwargs: typing.Any) -> None:
        """Nova's, on the destination, with the devices claimed for it."""
        nova_finish = functools.partial(
            super().finish_migration,  # type: ignore[misc]
            context, migration, instance, disk_info, network_info,
            image_meta, resize_instance, allocations, *args, **kwargs)
        with self._gpu_working(instance, moves.destination_of(migration)):
            if self._gpu_asked(instance.flavor):
                moves.finish(self.gpu_tracker, instance.uuid, migration,
                             allocations, nova_finish)
            else:
                nova_finish()

    def confirm_migration(self, context: typing.Any, migration: typing.Any,
                          instance: typing.Any,
                          network_info: typing.Any) -> None:
        """Nova's, on the source; then the instance has its destination's
        devices, and what it had here is released."""
        with self._gpu_working(instance):
            try:
                super().confirm_migration(  # type: ignore[misc]
                    context, migration, instance, network_info)
            except Exception:
                self.gpu_tracker.allocation_removed(migration.uuid)
                raise
            source = tuple(
                assignment.uuid for assignment in filter(
                    moves.source_of(migration),
                    self.gpu_tracker.assignments.of_instance(instance.uuid)))
            if source or self._gpu_asked(instance.flavor):
                self.gpu_tracker.confirm_migration(
                    claim_obj.MigrationConfirmation(
                        instance_uuid=instance.uuid,
                        migration_uuid=migration.uuid,
                        source_assignments=source))

    def finish_revert_migration(self, context: typing.Any,
                                instance: typing.Any,
                                network_info: typing.Any,
                                migration: typing.Any, *args: typing.Any,
                                **kwargs: typing.Any) -> None:
        """Nova's, on the source, with the devices that were kept for it."""
        selector = moves.source_of(migration)
        with self._gpu_working(instance, selector):
            moves.prepare(self.gpu_tracker, filter(
                selector,
                self.gpu_tracker.assignments.of_instance(instance.uuid)))
            super().finish_revert_migration(  # type: ignore[misc]
                context, instance, network_info, migration, *args, **kwargs)

    # -- what a GPU cannot do -----------------------------------------------

    def suspend(self, context: typing.Any,
                instance: typing.Any) -> typing.Any:
        """A GPU's state cannot be saved; refused before any work."""
        if self._gpu_asked(instance.flavor):
            raise nova_exception.InstanceFaultRollback(
                virt_exception.GPUOperationUnsupported(
                    operation='Suspend', instance=instance.uuid))
        return super().suspend(context, instance)  # type: ignore[misc]

    def check_can_live_migrate_source(self, context: typing.Any,
                                      instance: typing.Any,
                                      *args: typing.Any,
                                      **kwargs: typing.Any) -> typing.Any:
        """A GPU cannot follow a running guest."""
        if self._gpu_asked(instance.flavor):
            raise nova_exception.MigrationPreCheckError(
                reason=f'instance {instance.uuid} holds GPUs, which cannot '
                       f'be live migrated')
        return super().check_can_live_migrate_source(  # type: ignore[misc]
            context, instance, *args, **kwargs)

    @staticmethod
    def _gpu_asked(flavor: typing.Any) -> bool:
        try:
            return bool(request_mod.from_extra_specs(flavor.extra_specs))
        except exception.Invalid:
            # Something of ours that cannot be read: not nothing.
            return True
