# SPDX-License-Identifier: Apache-2.0
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
