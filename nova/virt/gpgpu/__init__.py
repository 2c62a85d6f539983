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
