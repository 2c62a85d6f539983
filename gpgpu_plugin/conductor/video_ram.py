# SPDX-License-Identifier: Apache-2.0
"""Video RAM of GPUs by model, as their manufacturers state it.

It is shown to operators. It is no ``memory_mib`` of a variant, all of which a
scrub must write: ECC may keep a part of the memory. The size of a BAR is no
video RAM: it is a power of two, as 128 GiB for 80, or a window of 256 MiB.

``video_ram.csv`` has the GiB of models of the shipped catalogue of variants.
An id that boards of several sizes have is left out. A board with several GPUs
has so much on each of them.
"""

from __future__ import annotations

import csv
import importlib.resources

from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.vgpu import vgpu_type

_TABLE = importlib.resources.files('gpgpu_plugin.conductor') / 'video_ram.csv'
_MIB_PER_GIB = 1024

_OF_MODEL = {
    (row['vendor'], row['device']): int(row['gib']) * _MIB_PER_GIB
    for row in csv.DictReader(
        _TABLE.read_text(encoding='utf-8').splitlines())}


def of_model(vendor: str, device: str) -> int | None:
    """Return the MiB of video RAM of a whole GPU; None: not known."""
    return _OF_MODEL.get((vendor, device))


def of_type(name: str, whole: int | None) -> int | None:
    """Return the MiB of a type that is the whole GPU, or one of N equal VFs.

    Return None for other types, which have their own.

    :param whole: MiB of the whole GPU; None: not known
    """
    parts = (1 if name == naming.PASSTHROUGH
             else vgpu_type.count_of_plain_vfs(name))
    return whole // parts if whole and parts else None
