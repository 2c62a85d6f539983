# SPDX-License-Identifier: Apache-2.0
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
