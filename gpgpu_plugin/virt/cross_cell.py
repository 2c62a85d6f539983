# SPDX-License-Identifier: Apache-2.0
"""Resize and cold migration of an instance with GPUs to another cell.

Nova's procedure differs from that within a cell: nova-conductor runs it, both
cells have a record of the instance, one of them hidden, and the driver is
called as for a build and a delete. The destination claims as within a cell
(``move_claim``). The key of its claim is the UUID of the migration, which is
the same in both cells.
"""

from __future__ import annotations

import functools

from nova.compute import task_states
from oslo_log import log as logging

from gpgpu_plugin.compute import liveness
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.virt import migration as migration_mod
from gpgpu_plugin.virt import requested_devices
from gpgpu_plugin.virt import roles

LOG = logging.getLogger(__name__)


class CrossCellMixin(migration_mod.MigrationMixin):
    """Mixin for devices on source and destination in different cells."""

    def spawn(self, context: nova_types.Context,
              instance: nova_types.Instance,
              image_meta: nova_types.ImageMeta | None,
              injected_files: object, admin_password: object,
              allocations: nova_types.Allocations | None, *args: object,
              **kwargs: object) -> None:
        """Create a guest, or finish its migration from another cell."""
        spawn = functools.partial(
            super().spawn, context, instance, image_meta, injected_files,
            admin_password, allocations, *args, **kwargs)
        if (instance.task_state != task_states.RESIZE_FINISH
                or instance.uuid in self._gpu_at_work.selectors
                or not requested_devices.asks_for_gpus(instance.flavor)):
            spawn()
            return
        migration = roles.migration_at(instance, self.gpu_tracker.host)
        with self._gpu_working(
                instance, lambda: roles.destination_of(migration)):
            try:
                migration_mod.finish(
                    self.gpu_tracker, instance.uuid, migration,
                    allocations or {}, spawn)
            except Exception:
                self._gpu_undo_finish(
                    migration, instance, functools.partial(
                        self.destroy, context, instance,
                        kwargs.get('network_info'),
                        kwargs.get('block_device_info')))
                raise

    def _gpu_undo_finish(self, migration: nova_types.Migration,
                         instance: nova_types.Instance,
                         destroy: functools.partial[None]) -> None:
        """Destroy the guest and release its devices; never raises.

        Nova removes its record of the instance in this cell, so that nothing
        would destroy the guest later.
        """
        try:
            destroy()
            self._gpu_release(instance, self.gpu_tracker, liveness.Operation(
                liveness.Kind.FAIL, migration.uuid))
        except Exception:
            LOG.exception(
                'Cannot destroy the guest of instance %s on %s, to which '
                'migration %s failed. Its devices stay assigned until the '
                'guest is off; stop it in the hypervisor',
                instance.uuid, self.gpu_tracker.host, migration.uuid)
            self.gpu_tracker.request_reconcile()

    def cleanup(self, context: nova_types.Context,
                instance: nova_types.Instance, network_info: object,
                *args: object, **kwargs: object) -> None:
        """Clean up after a guest; confirm its migration to another cell."""
        cleanup = functools.partial(
            super().cleanup, context, instance, network_info, *args, **kwargs)
        if (instance.task_state == task_states.RESIZE_MIGRATED
                and instance.hidden):
            self._gpu_confirm_with(
                roles.migration_at(instance, self.gpu_tracker.host),
                instance, cleanup)
        else:
            cleanup()
