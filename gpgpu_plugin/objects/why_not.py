# SPDX-License-Identifier: Apache-2.0
"""Answers to ``gpgpu-manage why-not``, host by host."""

from __future__ import annotations

import dataclasses

from gpgpu_plugin.domain import why_not


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostAnswer:
    """Answer of one host to a request.

    :ivar findings: all reasons of the plugin to refuse it; none: it fits
    :ivar advice: changes that remove some of the reasons
    """

    host: str
    node_uuid: str
    findings: tuple[why_not.Finding, ...] = ()
    advice: tuple[why_not.Advice, ...] = ()

    @property
    def marker(self) -> str:
        """Marker of the rows after this one."""
        return self.host
