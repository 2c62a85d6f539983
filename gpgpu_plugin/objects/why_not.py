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
"""Answers to ``gpgpu-manage why-not``, host by host."""

from __future__ import annotations

import dataclasses

from gpgpu_plugin.domain.why_not import host as host_mod


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangeInfo:
    """One change of a proposal.

    :ivar kind: a domain.why_not.change.ChangeKind
    :ivar subject: UUID of a device or of an instance, VARIANT/TYPE, name of
        the host, a topology or a count, as the kind says
    :ivar address: PCI address, if the subject is a device
    """

    kind: str
    subject: str
    address: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostAnswer:
    """Answer of one host to a request.

    :ivar findings: all reasons of the plugin to refuse it; none: it fits
    :ivar proposals: changes each of which makes it fit, the cheapest first
    """

    host: str
    node_uuid: str
    findings: tuple[host_mod.Finding, ...] = ()
    proposals: tuple[tuple[ChangeInfo, ...], ...] = ()

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return self.host
