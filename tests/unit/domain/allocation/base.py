# SPDX-License-Identifier: Apache-2.0
"""Builders of GPUs, offers and requests."""

import dataclasses
import typing
from collections.abc import Sequence

from hypothesis import strategies as st

from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.domain.allocation import allocate as allocate_mod
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod

DEPTH = request_mod.AllocationPolicy.DEPTH_FIRST
BREADTH = request_mod.AllocationPolicy.BREADTH_FIRST
POLICIES = st.sampled_from([DEPTH, BREADTH])
TOPOLOGIES = st.sampled_from(list(request_mod.GPUTopology))
NODES = st.sampled_from([None, 0, 1, 2])
SWITCHES = st.sampled_from([None, 's1', 's2', 's3'])

TYPES = {name: vgpu.VGPUType(
    name=name, type_id=name, video_ram=size * 1024,
    max_instances=16 // size) for name, size in (
        ('16', 16), ('8', 8), ('8A', 8), ('4', 4))}


def gpu(gpu_id: str, *vgpus: str, **fields: typing.Any,
        ) -> vgpu.GPUCapacity:
    """Return a GPU of 16 GB with vGPUs of these types."""
    return vgpu.GPUCapacity(**{
        'id': gpu_id, 'types': TYPES, 'vgpus': tuple(
            vgpu.VGPU(vgpu_type=name) for name in vgpus),
        'mix_policy': vgpu.VGPUMixPolicy.ANY_MIX, **fields})


def whole_gpu(gpu_id: str, **fields: typing.Any) -> vgpu.GPUCapacity:
    """Return a GPU without vGPU types."""
    return vgpu.GPUCapacity(id=gpu_id, passthrough=True, **fields)


def passthrough(gpus: Sequence[vgpu.GPUCapacity],
                links: fabric.Links | None = None) -> offer_mod.TypeOffer:
    """Return the offer of whole GPUs."""
    return offer_mod.TypeOffer(
        vgpu_type=naming.PASSTHROUGH, gpus=gpus, links=links)


def offers(gpus: Sequence[vgpu.GPUCapacity],
           links: fabric.Links | None = None,
           ) -> dict[str, offer_mod.TypeOffer]:
    """Return all offers of one group.

    V8 is the resource class of type 8, WHOLE that of whole GPUs. Link
    partitions of other GPUs are left out.
    """
    ids = {gpu.id for gpu in gpus}
    if links is not None:
        links = dataclasses.replace(links, partitions=tuple(
            part for part in links.partitions if part <= ids))
    return {'WHOLE': passthrough(gpus, links)} | {
        f'V{name}': offer_mod.TypeOffer(vgpu_type=name, gpus=gpus)
        for name in TYPES}


def request(counts: dict[str, int],
            **fields: typing.Any) -> request_mod.Request:
    """Return a request of units by resource class."""
    return request_mod.Request(demands=tuple(
        request_mod.Demand(resource_class=name, count=count)
        for name, count in sorted(counts.items())), **fields)


def allocate(requested: request_mod.Request, *gpus: vgpu.GPUCapacity,
             **kwargs: typing.Any) -> dict[str, list[str]]:
    """Return ids of the selected GPUs by resource class."""
    selections = allocate_mod.allocate(offers(gpus), requested, {}, **kwargs)
    return {name: [selection.gpu_id for selection in selected]
            for name, selected in selections.items()}


_VGPUS = st.sampled_from([
    (), (), ('4',), ('8',), ('4', '4'), ('4', '8A'), ('8', '4', '4'), ('16',)])
_DRIVER_AVAILABLE = [
    None, None, {'16': 1, '8': 2, '8A': 2, '4': 4},
    {'16': 0, '8': 1, '8A': None, '4': 3}, {'8': 2, '4': 1}]


@st.composite
def hosts(draw: st.DrawFn, max_gpus: int = 3) -> list[vgpu.GPUCapacity]:
    """Draw the GPUs of one group of a host, used and limited at random."""
    mix_policy = draw(st.sampled_from(vgpu.VGPUMixPolicy))
    gpus = []
    for gpu_id in 'abcdef'[:draw(st.integers(1, max_gpus))]:
        new = gpu(
            gpu_id, mix_policy=mix_policy, numa_node=draw(NODES),
            switch=draw(SWITCHES), passthrough=draw(st.booleans()),
            driver_available=draw(st.sampled_from(_DRIVER_AVAILABLE)))
        for name in draw(_VGPUS):
            if new.available(name):
                new = new.with_vgpu(name)
        gpus.append(new)
    if draw(st.booleans()):
        gpus.append(whole_gpu('x', numa_node=0, switch='s1'))
    return gpus


@st.composite
def link_groups(draw: st.DrawFn, ids: Sequence[str],
                ) -> fabric.Links | None:
    """Draw how GPUs are linked, in any way that makes sense or not."""
    if not ids or draw(st.booleans()):
        return None
    parts = draw(st.lists(
        st.frozensets(st.sampled_from(sorted(ids)), min_size=1, max_size=4),
        max_size=6, unique=True))
    return fabric.Links(
        partitions=tuple(parts), fabric=draw(st.booleans()),
        problem=draw(st.sampled_from(['', 'one is gone'])))


def lattice(ids: str) -> tuple[fabric.Partition, ...]:
    """Return all GPUs, then both halves of each partition, down to one."""
    if len(ids) == 1:
        return (frozenset(ids),)
    half = len(ids) // 2
    return (frozenset(ids), *lattice(ids[:half]), *lattice(ids[half:]))
