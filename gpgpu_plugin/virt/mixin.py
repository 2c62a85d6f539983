# SPDX-License-Identifier: Apache-2.0
"""GPUs for any virt driver of Nova: ``class X(GPUMixin, SomeDriver)``.

The mixin does not depend on the driver that it extends. Differences between
hosts are in the host class, which the final class names.
"""

from __future__ import annotations

from gpgpu_plugin.virt import migration


class GPUMixin(migration.CrossCellMixin):
    """Mixin that claims before spawn, releases after destroy, and reports.

    It combines four mixins: ``service.ServiceMixin`` (start and end of
    nova-compute), ``lifecycle.LifecycleMixin`` (one guest on one host),
    ``migration.MigrationMixin`` (from one host to another) and
    ``migration.CrossCellMixin`` (from one cell to another).
    """
