# SPDX-License-Identifier: Apache-2.0
"""Sessions: who speaks for a host, and what its nova-compute knows."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable

from gpgpu_plugin.domain import machine
from gpgpu_plugin.objects import codec


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """One start of nova-compute that asks to speak for its host.

    :ivar node: hypervisor hostname = name of Nova's root resource provider
    :ivar node_uuid: UUID of that provider
    :ivar start_uuid: made at each start of nova-compute
    :ivar identity: of the machine
    :ivar expected: number of the newest session that the host knows of, 0 for
        none. A request that another start has overtaken names an older one
        and is refused
    :ivar generation: highest generation of the host that a conductor
        acknowledged
    :ivar superseded: this start had a session, and a newer one took its
        place: it must not take it back from a nova-compute that is alive
    :ivar doubted: the database contradicts the host's book, so it must have
        been restored from a backup
    :ivar version: of its gpgpu_plugin
    :ivar cloud: UUID of the cloud that gave it sessions before; empty: none
    """

    host: str
    node: str
    node_uuid: str
    start_uuid: str
    identity: machine.MachineIdentity
    expected: codec.Counter = 0
    generation: codec.Counter = 0
    superseded: bool = False
    doubted: bool = False
    version: str
    cloud: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """Session that a conductor gave to one start of nova-compute.

    :ivar restored: the conductor's database knows less than the host: it was
        restored from a backup, or the host was deleted in it
    :ivar cloud: UUID of the cloud; the host keeps it
    """

    number: int
    generation: int
    restored: bool
    cloud: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """Speaker of a call: one session of one host.

    :ivar generation: highest generation of the host that a conductor
        acknowledged
    """

    host: str
    node_uuid: str
    start_uuid: str
    session: codec.Counter
    generation: codec.Counter


def digest(generation: int,
           assignments: Iterable[tuple[str, str, str, str]]) -> int:
    """Return one number for what a host and the conductor must agree on.

    :param assignments: UUID, instance UUID, role and migration UUID ('' for
        none) of those that are active on the host
    :returns: 63 bits, which any database and JSON reader can hold
    """
    text = '\n'.join([
        str(generation), *sorted(' '.join(row) for row in assignments)])
    return int.from_bytes(
        hashlib.sha256(text.encode()).digest()[:8]) >> 1
