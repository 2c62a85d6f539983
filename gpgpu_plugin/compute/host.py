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
"""The parts of one compute host that its tasks work with."""

from __future__ import annotations

import dataclasses

from gpgpu_plugin.compute import assignments
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import session
from gpgpu_plugin.host import base
from gpgpu_plugin.rpc import conductor_api


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """A compute host: its hardware, its book and whom it talks to.

    :ivar name: of the nova-compute service
    :ivar client: Nova's report client
    """

    name: str
    backend: base.Host
    api: conductor_api.ConductorAPI
    client: nova_types.ReportClient
    assignments: assignments.HostAssignments
    session: session.HostSession
