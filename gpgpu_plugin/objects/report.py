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
"""A host's scan, as sent to the conductor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import vgpu_type

DriverCapacities = Mapping[str, vgpu_type.DriverCapacity]
"""What the drivers of a host's cards say that can be carved out of them now,
by the cards' stable ids; cards that are left out stay as they are known."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostReport:
    """What one host found.

    :ivar host: name of the nova-compute service (``[DEFAULT] host``)
    :ivar node: hypervisor hostname = name of Nova's root resource provider
    :ivar node_uuid: UUID of that provider
    :ivar functions: what the host's backends could hand out, whether or not
        a variant matches: the conductor alone applies variants
    :ivar problems: what could not be read, one sentence each
    """

    host: str
    node: str
    node_uuid: str
    functions: tuple[pci.PCIFunction, ...]
    problems: tuple[str, ...] = ()
