# SPDX-License-Identifier: Apache-2.0
"""Offers of resource classes on one host, and the selections from them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import links as links_mod
from gpgpu_plugin.domain.allocation import region as region_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.vgpu import capacity


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypeOffer:
    """Offer of one resource class on one host: one type of a group's GPUs.

    A GPU with one id is the same GPU, with an equal value, in each offer of a
    host. A GPU is in at most one offer of the type ``passthrough``.

    :ivar vgpu_type: name of the type, ``passthrough`` for whole GPUs
    :ivar enabled: whether operators allow claims of it
    :ivar links: of whole GPUs; None: not known
    """

    vgpu_type: str
    gpus: Sequence[capacity.GPUCapacity]
    enabled: bool = True
    links: links_mod.Links | None = None

    @property
    def is_passthrough(self) -> bool:
        """Return whether the offer is of whole GPUs."""
        return self.vgpu_type == naming.PASSTHROUGH

    @functools.cached_property
    def available_by_gpu(self) -> Mapping[str, int]:
        """Return how many units each GPU can take now, by the GPU's id.

        It assumes that nothing else is claimed.
        """
        return {gpu.id: gpu.available(self.vgpu_type) if self.enabled else 0
                for gpu in self.gpus}

    @functools.cached_property
    def free_partitions(self) -> tuple[links_mod.Partition, ...]:
        """Return the link partitions that can be taken now."""
        if self.links is None:
            return ()
        return self.links.free([
            gpu.id for gpu in self.gpus if self.available_by_gpu[gpu.id]])

    @functools.cached_property
    def fragmentation(self) -> links_mod.FreePartitions:
        """Return the link partitions that can be taken, with their cost."""
        return links_mod.FreePartitions(
            partitions=self.free_partitions,
            gpus=tuple(gpu.id for gpu in self.gpus))

    def partitions_of(self, count: int) -> list[links_mod.Partition]:
        """Return the link partitions of some size that can be taken now."""
        return [part for part in self.free_partitions if len(part) == count]

    def is_confined(self, request: request_mod.Request) -> bool:
        """Return whether a request gets exactly one link partition of it."""
        # A vGPU has no links.
        return request.is_linked or (
            self.is_passthrough and links_mod.is_confined(
                self.links, request))

    def available(self) -> int:
        """Return how many units could be claimed now."""
        return sum(self.available_by_gpu.values())

    def within(self, region: region_mod.Region) -> TypeOffer:
        """Return the offer of a region's GPUs alone."""
        if region.is_whole_host:
            return self
        return TypeOffer(
            vgpu_type=self.vgpu_type, enabled=self.enabled,
            links=self.links,
            gpus=[gpu for gpu in self.gpus if gpu in region])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """One selected unit: a whole GPU or a vGPU on it.

    :ivar gpu_id: id of the GPU
    :ivar vgpu_type: ``passthrough`` for the whole GPU
    :ivar placement_id: as in ``capacity.VGPU``
    """

    gpu_id: str
    vgpu_type: str
    placement_id: int | None = None
