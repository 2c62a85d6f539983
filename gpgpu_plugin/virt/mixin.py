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
host is the backend, which the final class gives by ``gpu_backend``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import typing

import nova.conf
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin import rpc
from gpgpu_plugin.compute import manager as compute_manager
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.compute import worker
from gpgpu_plugin.conductor import rpcapi
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain import request as request_mod
from gpgpu_plugin.host import base
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.virt import exception as virt_exception
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


def instance_is_gone(uuid: str) -> bool:
    """Whether Nova deleted the instance; in doubt it did not."""
    context = nova_context.get_admin_context(read_deleted='yes')
    try:
        return bool(objects.Instance.get_by_uuid(context, uuid).deleted)
    except nova_exception.InstanceNotFound:
        return True


class GpuMixin:
    """Claims before spawn, releases after destroy, reports in between."""

    def __init__(self, virtapi: typing.Any, *args: typing.Any,
                 **kwargs: typing.Any) -> None:
        check_nova_version(importlib.metadata.version('nova'))
        conf_gpgpu.register_opts(CONF)
        super().__init__(virtapi, *args, **kwargs)  # type: ignore[call-arg]
        self._gpu_client = virtapi.reportclient
        self._gpu_tracker: resource_tracker.ResourceTracker | None = None
        self._gpu_worker: worker.Worker | None = None
        self._gpu_server: typing.Any = None
        self._gpu_spawning: set[str] = set()

    def gpu_backend(self, host: str) -> base.Backend:
        """The host's backend. The final class gives it."""
        raise NotImplementedError

    @property
    def gpu_tracker(self) -> resource_tracker.ResourceTracker:
        """The host's tracker; there from init_host on."""
        if self._gpu_tracker is None:
            raise RuntimeError('init_host was not called')
        return self._gpu_tracker

    # -- life of the service ------------------------------------------------

    def init_host(self, host: str) -> None:
        """Ours first: Nova may destroy guests before its first inventory."""
        transport = rpc.transport(CONF)
        tracker = resource_tracker.ResourceTracker(
            CONF, host, self.gpu_backend(host),
            rpcapi.ConductorAPI(CONF, transport), self._gpu_client,
            instance_is_gone)
        self._gpu_tracker = tracker
        self._gpu_worker = worker.Worker(
            tracker.tick, CONF.gpgpu.scan_interval, f'gpgpu-{host}')
        # Claims of a dead predecessor end before anything is built.
        self._gpu_worker.run_once()
        super().init_host(host)  # type: ignore[misc]
        self._gpu_find_node()
        self._gpu_worker.run_once()
        self._gpu_server = rpc.server(
            transport, rpc.COMPUTE_TOPIC, host,
            [compute_manager.ComputeManager(self._gpu_refresh)])
        self._gpu_server.start()
        self._gpu_worker.start()

    def _gpu_find_node(self) -> None:
        [(uuid, name)] = (
            self.get_nodenames_by_uuid().items())  # type: ignore[attr-defined]
        self.gpu_tracker.set_node(name, uuid)

    def _gpu_refresh(self) -> None:
        self.gpu_tracker.refresh()
        self._gpu_wake()

    def _gpu_wake(self) -> None:
        if self._gpu_worker is not None:
            self._gpu_worker.wake()

    def cleanup_host(self, host: str) -> None:
        """Stop what init_host started."""
        if self._gpu_server is not None:
            self._gpu_server.stop()
            self._gpu_server.wait()
            self._gpu_server = None
        if self._gpu_worker is not None:
            self._gpu_worker.stop()
            self._gpu_worker = None
        super().cleanup_host(host)  # type: ignore[misc]

    def update_provider_tree(self, provider_tree: typing.Any, nodename: str,
                             allocations: typing.Any = None) -> None:
        """Nova's own resources, then our groups below the node."""
        super().update_provider_tree(  # type: ignore[misc]
            provider_tree, nodename, allocations)
        if self._gpu_tracker is not None:
            self._gpu_tracker.update_provider_tree(provider_tree, nodename)

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
        with self._gpu_errors(instance):
            request = request_mod.from_extra_specs(
                instance.flavor.extra_specs)
        if not request:
            nova_spawn()
            return
        run = steps.Spawn(
            tracker=self.gpu_tracker,
            request=self._gpu_claim_request(instance, request, allocations),
            spawn=nova_spawn,
            destroy=functools.partial(
                super().destroy, context, instance,  # type: ignore[misc]
                kwargs.get('network_info'), kwargs.get('block_device_info')))
        self._gpu_spawning.add(instance.uuid)
        try:
            with (self._gpu_errors(instance),
                  self.gpu_tracker.building(instance.uuid)):
                steps.execute(run)
        finally:
            self._gpu_spawning.discard(instance.uuid)
            self._gpu_wake()

    def _gpu_claim_request(self, instance: typing.Any,
                           request: request_mod.Request,
                           allocations: typing.Any,
                           ) -> claim_obj.ClaimRequest:
        return claim_obj.ClaimRequest(
            instance_uuid=instance.uuid, host=self.gpu_tracker.host,
            project_id=instance.project_id, user_id=instance.user_id,
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
            if self._gpu_is_evacuation(instance):
                raise nova_exception.ComputeResourcesUnavailable(
                    reason=reason) from exc
            raise virt_exception.GPUClaimDenied(reason=reason) from exc
        except exception.GpgpuException as exc:
            raise nova_exception.ComputeResourcesUnavailable(
                reason=str(exc)) from exc

    def _gpu_is_evacuation(self, instance: typing.Any) -> bool:
        return (instance.task_state in (
            task_states.REBUILDING, task_states.REBUILD_SPAWNING)
            and instance.host != self.gpu_tracker.host)

    # -- destroy ------------------------------------------------------------

    def destroy(self, context: typing.Any, instance: typing.Any,
                *args: typing.Any, **kwargs: typing.Any) -> None:
        """The guest first, then what it held, if Nova gives it up."""
        super().destroy(  # type: ignore[misc]
            context, instance, *args, **kwargs)
        if self._gpu_tracker is None or not release.releases(
                vm_state=instance.vm_state, task_state=instance.task_state,
                deleted=bool(instance.deleted),
                instance_host=instance.host,
                this_host=self._gpu_tracker.host,
                spawning_here=instance.uuid in self._gpu_spawning):
            return
        self._gpu_tracker.release(instance.uuid)
        self._gpu_wake()

    # -- not built yet ------------------------------------------------------

    def migrate_disk_and_power_off(self, context: typing.Any,
                                   instance: typing.Any, dest: str,
                                   flavor: typing.Any, *args: typing.Any,
                                   **kwargs: typing.Any) -> typing.Any:
        """Refused before the guest is stopped, if a GPU is on either side."""
        if self._gpu_asked(instance.flavor) or self._gpu_asked(flavor):
            raise nova_exception.InstanceFaultRollback(
                virt_exception.GPUOperationUnsupported(
                    operation='Resize or cold migration',
                    instance=instance.uuid))
        return super().migrate_disk_and_power_off(  # type: ignore[misc]
            context, instance, dest, flavor, *args, **kwargs)

    def suspend(self, context: typing.Any,
                instance: typing.Any) -> typing.Any:
        """A whole GPU's state cannot be saved; refused before any work."""
        if self._gpu_asked(instance.flavor):
            raise nova_exception.InstanceFaultRollback(
                virt_exception.GPUOperationUnsupported(
                    operation='Suspend', instance=instance.uuid))
        return super().suspend(context, instance)  # type: ignore[misc]

    def check_can_live_migrate_source(self, context: typing.Any,
                                      instance: typing.Any,
                                      *args: typing.Any,
                                      **kwargs: typing.Any) -> typing.Any:
        """A whole GPU cannot follow a running guest."""
        if self._gpu_asked(instance.flavor):
            raise nova_exception.MigrationPreCheckError(
                reason=f'instance {instance.uuid} holds whole GPUs, which '
                       f'cannot be live migrated')
        return super().check_can_live_migrate_source(  # type: ignore[misc]
            context, instance, *args, **kwargs)

    @staticmethod
    def _gpu_asked(flavor: typing.Any) -> bool:
        try:
            return bool(request_mod.from_extra_specs(flavor.extra_specs))
        except exception.Invalid:
            # Something of ours that cannot be read: not nothing.
            return True
