# SPDX-License-Identifier: Apache-2.0
"""Package that lets ``compute_driver = gpgpu.<class>`` resolve.

Nova imports ``nova.virt.<compute_driver>`` and has no entry points for
drivers. The classes are those of the entry points
``gpgpu_plugin.virt_drivers``. Each class is loaded when it is first used,
since each one needs the libraries of its hypervisor.
"""

from __future__ import annotations

import importlib.metadata

_NAMESPACE = 'gpgpu_plugin.virt_drivers'


def __getattr__(name: str) -> object:
    for entry_point in importlib.metadata.entry_points(group=_NAMESPACE):
        if entry_point.attr == name:
            return entry_point.load()
    raise AttributeError(f'module {__name__} has no attribute {name}')
