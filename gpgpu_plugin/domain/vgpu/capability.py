# SPDX-License-Identifier: Apache-2.0
"""vGPUs that a PCI function offers and has, merged from scan to scan."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection

from gpgpu_plugin.domain.vgpu import vgpu_type


class VGPUMechanism(enum.StrEnum):
    """Mechanism by which a driver exposes the vGPUs of a GPU.

    ``mdev``: a mediated device is created for each vGPU. ``vf``: each vGPU
    is one of the GPU's SR-IOV virtual functions.
    """

    MDEV = 'mdev'
    VF = 'vf'


@dataclasses.dataclass(frozen=True, kw_only=True)
class VGPUCapability:
    """vGPUs of one PCI function.

    :ivar types: types that the function can be partitioned into; those of
        VFs are listed at their PF only. None: there are some, but the driver
        does not list them now
    :ivar existing_vgpus: UUIDs of the function's mdevs, or the number of the
        type that a VF has. As stored by the conductor: only those that were
        not made for an assignment
    """

    mechanism: VGPUMechanism
    types: tuple[vgpu_type.VGPUType, ...] | None = ()
    existing_vgpus: tuple[str, ...] = ()


def merge(stored: VGPUCapability | None, observed: VGPUCapability | None, *,
          in_use: bool, own_vgpus: Collection[str]) -> VGPUCapability | None:
    """Return what is known about a function's vGPUs after a scan.

    While a guest has the whole function, its driver lists nothing. While a GPU
    has vGPUs, its driver may not list the types, or not how many of each fit
    on the empty GPU. In these cases the stored values stay.

    :param in_use: whether the function's own device is not available
    :param own_vgpus: those of ``observed.existing_vgpus`` that were made for
        assignments
    """
    if observed is None:
        if stored is None or not in_use:
            return None
        return dataclasses.replace(stored, existing_vgpus=())
    foreign = tuple(name for name in observed.existing_vgpus
                    if name not in own_vgpus)
    if stored is None:
        return dataclasses.replace(observed, existing_vgpus=foreign)
    if observed.types is None or (in_use and not observed.types):
        return dataclasses.replace(stored, existing_vgpus=foreign)
    known = {known.name: known.max_instances for known in stored.types or ()}
    return dataclasses.replace(
        observed, existing_vgpus=foreign,
        types=tuple(
            dataclasses.replace(
                listed, max_instances=known.get(listed.name))
            if listed.max_instances is None else listed
            for listed in observed.types))
