# SPDX-License-Identifier: Apache-2.0
"""Allocation candidates for 8 GPUs beside those for one, and for none.

Placement's WSGI application runs in this process, on SQLite in memory, so that
all of its time is CPU time of the process. Each host has a provider with
vCPUs, RAM and disk, and below it that of a group of eight GPUs. Queries are
those that nova-scheduler makes of flavors. They take turns, and the best of
five counts.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import time
import typing
import uuid
from collections.abc import Iterator
from collections.abc import Mapping

import os_traits
from nova import context as nova_context
from nova import objects
from nova.scheduler import request_filter
from nova.scheduler import utils

from bench import placement_peer
from bench import report
from gpgpu_plugin.domain import naming

_VARIANT = 'BENCH'
_CLASS = naming.resource_class(_VARIANT)
_GPUS = 8
_NUMBERS = (0, 1, _GPUS)
_ROUNDS = 5
_GOAL = report.Goal(at_most=1.05, ratio=True)
_HOST = {
    'VCPU': {'total': 128}, 'MEMORY_MB': {'total': 1 << 20},
    'DISK_GB': {'total': 10_000}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Answer:
    """Answer to one query.

    :ivar milliseconds: CPU time that it took
    :ivar hosts: number of candidates that are right
    """

    milliseconds: float
    hosts: int


def _call(client: placement_peer.PlacementClient, method: str, path: str,
          body: object = None) -> dict[str, typing.Any]:
    response = client.call(method, path, body)
    if response.status_int >= 300:
        raise RuntimeError(f'{method} {path}: {response.text}')
    answer: dict[str, typing.Any] = response.json if response.body else {}
    return answer


def _set_up(call: functools.partial[dict[str, typing.Any]],
            hosts: int) -> None:
    """Create the providers of hosts as nova-compute and the plugin do."""
    traits = sorted(naming.traits(_VARIANT))
    call('PUT', f'/resource_classes/{_CLASS}')
    for trait in traits:
        if trait not in os_traits.get_traits():
            call('PUT', f'/traits/{trait}')
    for number in range(hosts):
        root, group = str(uuid.uuid4()), str(uuid.uuid4())
        _provider(call, f'host{number}', root, None, _HOST)
        _provider(call, f'host{number}_{_VARIANT}', group, root,
                  {_CLASS: {'total': _GPUS, 'max_unit': _GPUS}})
        call('PUT', f'/resource_providers/{group}/traits', {
            'resource_provider_generation': 1, 'traits': traits})


def _provider(call: functools.partial[dict[str, typing.Any]], name: str,
              provider: str, parent: str | None,
              inventories: Mapping[str, object]) -> None:
    call('POST', '/resource_providers', {
        'name': name, 'uuid': provider, 'parent_provider_uuid': parent})
    call('PUT', f'/resource_providers/{provider}/inventories', {
        'resource_provider_generation': 0, 'inventories': inventories})


def _query(gpus: int) -> str:
    """Return the query that nova-scheduler makes of a flavor."""
    spec = objects.RequestSpec(
        context=nova_context.get_admin_context(), project_id='bench',
        flavor=objects.Flavor(
            flavorid='bench', vcpus=8, memory_mb=65536, root_gb=10,
            ephemeral_gb=0, swap=0,
            extra_specs={f'resources:{_CLASS}': str(gpus)} if gpus else {}),
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        requested_resources=[], numa_topology=None, is_bfv=False,
        request_level_params=objects.RequestLevelParams(
            root_required=set(), root_forbidden=set(), same_subtree=[]))
    request_filter.compute_status_filter(spec._context, spec)
    return '/allocation_candidates?' + (
        utils.ResourceRequest.from_request_spec(spec).to_querystring())


def _ask(call: functools.partial[dict[str, typing.Any]],
         gpus: int) -> _Answer:
    began = time.process_time()
    answer = call('GET', _query(gpus))
    milliseconds = 1000 * (time.process_time() - began)
    return _Answer(milliseconds=milliseconds, hosts=sum(
        gpus == sum(part['resources'].get(_CLASS, 0) for part
                    in candidate['allocations'].values())
        for candidate in answer['allocation_requests']))


def _measure(hosts: int) -> dict[int, list[_Answer]]:
    """Return the answers by number of GPUs."""
    found: dict[int, list[_Answer]] = {gpus: [] for gpus in _NUMBERS}
    call = functools.partial(
        _call, placement_peer.PlacementClient('sqlite://', sync=True))
    _set_up(call, hosts)
    gc.disable()
    try:
        for _ in range(_ROUNDS):
            for gpus in _NUMBERS:
                found[gpus].append(_ask(call, gpus))
                gc.collect()
    finally:
        gc.enable()
    return found


def _rows(hosts: int, best: Mapping[int, float]) -> Iterator[report.Row]:
    what = f'allocation candidates, {hosts} hosts'
    yield report.Row(what=f'{what}, {_GPUS} GPUs', unit='ms', goal=_GOAL,
                     ours=best[_GPUS], peer=best[1], note='peer: 1 GPU')
    for gpus in (1, _GPUS):
        yield report.Row(
            what=f'{what}, {gpus} GPU{"s" if gpus > 1 else ""}', unit='ms',
            ours=best[gpus], peer=best[0], note='peer: without GPU')


def run(hosts: int = 1000) -> report.Result:
    """Measure; an answer without one candidate for each host is wrong."""
    objects.register_all()
    logging.getLogger('placement').setLevel(logging.ERROR)
    found = _measure(hosts)
    best = {gpus: min(answer.milliseconds for answer in answers)
            for gpus, answers in found.items()}
    return report.Result(
        name='candidates', rows=tuple(_rows(hosts, best)), wrong=tuple(
            f'{answer.hosts} of {hosts} hosts are candidates for {gpus} GPUs'
            for gpus, answers in found.items() for answer in answers
            if answer.hosts != hosts))


def run_quickly() -> report.Result:
    """Measure a tenth of the hosts."""
    return run(hosts=100)
