# SPDX-License-Identifier: Apache-2.0
"""States of hosts, and the machine under a host."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
from collections.abc import Mapping


class HostState(enum.StrEnum):
    """State of a host, by which instances can come to it or not.

    ``up``: its nova-compute called the conductors lately. ``silent``: it has
    not called for three ``[gpgpu] digest_interval``, three minutes at least,
    so that nothing of the host can be claimed or cleaned. ``restored``: the
    database was restored from a backup, and the host has not reported what it
    has since; nothing of it can be claimed until then. ``disabled``: it calls,
    but an operator has disabled it in Nova, which then selects the host for
    nothing. ``draining``: no instance gets a device of it (``host drain``).
    """

    UP = 'up'
    SILENT = 'silent'
    RESTORED = 'restored'
    DISABLED = 'disabled'
    DRAINING = 'draining'


def utc(heard_at: float) -> str:
    """Return the time of a host's call, as operators see it."""
    return datetime.datetime.fromtimestamp(
        heard_at, datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')


def minutes_to_report(digest_interval: float) -> int:
    """Return within which time a host that runs notices a restore.

    An interval may be half as long again, and an iteration follows.
    """
    return math.ceil(2 * digest_interval / 60)


# -- Identity of the machine on which a host's nova-compute runs.
#
# Two machines that were given the same host name by mistake must not both
# speak for it. Nothing that every service user can read is proof on its own:
# machine ids are copied with images, GPUs are moved, and a kernel that boots
# has a new boot id.


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineIdentity:
    """Identity of a machine, as far as the service user can read it.

    :ivar boot_id: of the running kernel (/proc/sys/kernel/random/boot_id);
        empty if unknown
    :ivar machine_id: of the installation (/etc/machine-id); empty if unknown
    :ivar gpus: serial numbers of the GPUs by stable id; an empty serial
        number is unknown
    """

    boot_id: str = ''
    machine_id: str = ''
    gpus: Mapping[str, str] = dataclasses.field(default_factory=dict)


def is_same_boot(old: MachineIdentity, new: MachineIdentity) -> bool:
    """Return whether it is known that the same kernel still runs."""
    return bool(old.boot_id) and old.boot_id == new.boot_id


def machine_difference(old: MachineIdentity,
                       new: MachineIdentity) -> str | None:
    """Return why two identities may be two machines; None if they are one.

    The same running kernel is the same machine, whatever became of its GPUs.
    After a reboot the installation must be the same, and the GPUs those that
    were there; a GPU that is missing is no difference if others are there.
    """
    if is_same_boot(old, new):
        return None
    if not old.machine_id or old.machine_id != new.machine_id:
        return (f'its machine id is {new.machine_id or "unknown"} instead of '
                f'{old.machine_id or "unknown"}')
    for gpu in old.gpus.keys() & new.gpus.keys():
        before, now = old.gpus[gpu], new.gpus[gpu]
        if before != now and before and now:
            return (f'the GPU at {gpu} has serial number {now} instead of '
                    f'{before}')
    if not (old.gpus.keys() <= new.gpus.keys()
            or (new.gpus and new.gpus.keys() <= old.gpus.keys())):
        return (f'its GPUs are at {_places(new)} instead of {_places(old)}')
    return None


def _places(identity: MachineIdentity) -> str:
    return ', '.join(sorted(identity.gpus)) or 'no place'
