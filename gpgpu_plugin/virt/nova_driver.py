# SPDX-License-Identifier: Apache-2.0
"""Nova's virt driver, as far as the mixins extend it.

For mypy the mixins extend ``DeclaredDriver``, which has types; at run time
they extend Nova's own class. ``tests/unit/virt/test_nova_driver.py`` compares
both. Arguments that are only passed on are in ``args`` and ``kwargs``.
"""

from __future__ import annotations

import typing

from nova.virt import driver

from gpgpu_plugin.compute import nova_types


class DeclaredDriver:
    """The methods of ``nova.virt.driver.ComputeDriver`` that the mixins extend
    or call."""

    virtapi: nova_types.VirtAPI

    def __init__(self, virtapi: nova_types.VirtAPI, *args: object,
                 **kwargs: object) -> None:
        raise NotImplementedError

    def init_host(self, host: str) -> None:
        """Prepare the driver; called once, before anything else."""
        raise NotImplementedError

    def cleanup_host(self, host: str) -> None:
        """End the driver; called once, at the end."""
        raise NotImplementedError

    def get_nodenames_by_uuid(self, refresh: bool = False) -> dict[str, str]:
        """Return names of compute nodes by UUID."""
        raise NotImplementedError

    def get_info(self, instance: nova_types.Instance,
                 use_cache: bool = True) -> nova_types.InstanceInfo:
        """Return the state of a guest."""
        raise NotImplementedError

    def update_provider_tree(
            self, provider_tree: nova_types.ProviderTree, nodename: str,
            allocations: object = None) -> None:
        """Bring Nova's provider tree in line with the host."""
        raise NotImplementedError

    def spawn(self, context: nova_types.Context,
              instance: nova_types.Instance,
              image_meta: nova_types.ImageMeta | None,
              injected_files: object, admin_password: object,
              allocations: nova_types.Allocations | None, *args: object,
              **kwargs: object) -> None:
        """Create and start a guest."""
        raise NotImplementedError

    def destroy(self, context: nova_types.Context,
                instance: nova_types.Instance, *args: object,
                **kwargs: object) -> None:
        """Destroy a guest and remove its resources."""
        raise NotImplementedError

    def reboot(self, context: nova_types.Context,
               instance: nova_types.Instance, network_info: object,
               reboot_type: str, *args: object, **kwargs: object) -> None:
        """Reboot a guest, softly or hard."""
        raise NotImplementedError

    def power_on(self, context: nova_types.Context,
                 instance: nova_types.Instance, *args: object,
                 **kwargs: object) -> None:
        """Start a guest."""
        raise NotImplementedError

    def resume_state_on_host_boot(
            self, context: nova_types.Context, instance: nova_types.Instance,
            *args: object, **kwargs: object) -> None:
        """Start a guest again after the host was booted."""
        raise NotImplementedError

    def rescue(self, context: nova_types.Context,
               instance: nova_types.Instance, *args: object,
               **kwargs: object) -> None:
        """Start a guest from another image."""
        raise NotImplementedError

    def unrescue(self, context: nova_types.Context,
                 instance: nova_types.Instance) -> None:
        """Start a guest as it was before its rescue."""
        raise NotImplementedError

    def suspend(self, context: nova_types.Context,
                instance: nova_types.Instance) -> None:
        """Save a guest's state and stop it."""
        raise NotImplementedError

    def check_can_live_migrate_source(
            self, context: nova_types.Context, instance: nova_types.Instance,
            *args: object, **kwargs: object) -> object:
        """Check, on the source, whether a guest can be live migrated."""
        raise NotImplementedError

    def cleanup(self, context: nova_types.Context,
                instance: nova_types.Instance, network_info: object,
                *args: object, **kwargs: object) -> None:
        """Remove what is left of a guest that was destroyed."""
        raise NotImplementedError

    def migrate_disk_and_power_off(
            self, context: nova_types.Context, instance: nova_types.Instance,
            dest: str, flavor: nova_types.Flavor, *args: object,
            **kwargs: object) -> object:
        """Stop a guest, on the source, and copy its disk."""
        raise NotImplementedError

    def finish_migration(
            self, context: nova_types.Context,
            migration: nova_types.Migration, instance: nova_types.Instance,
            disk_info: object, network_info: object, image_meta: object,
            resize_instance: object,
            allocations: nova_types.Allocations | None, *args: object,
            **kwargs: object) -> None:
        """Create the guest on the destination."""
        raise NotImplementedError

    def confirm_migration(
            self, context: nova_types.Context,
            migration: nova_types.Migration, instance: nova_types.Instance,
            network_info: object) -> None:
        """Remove what is left of the instance on the source."""
        raise NotImplementedError

    def finish_revert_migration(
            self, context: nova_types.Context, instance: nova_types.Instance,
            network_info: object, migration: nova_types.Migration,
            *args: object, **kwargs: object) -> None:
        """Create the guest on the source again."""
        raise NotImplementedError


if typing.TYPE_CHECKING:
    ComputeDriver = DeclaredDriver
else:
    ComputeDriver = driver.ComputeDriver
