# SPDX-License-Identifier: Apache-2.0
"""Workloads made from the requests of a trace, by changing what they need."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence

from gpgpu_plugin.domain import weighing

Requests = list[weighing.WeighedRequest]
_MODELS = (('T4', 6), ('G2', 5), ('P100', 2), ('V100M16|V100M32', 2),
           ('G3', 1))


def _change(requests: Sequence[weighing.WeighedRequest],
            change: Callable[[weighing.WeighedRequest, random.Random],
                             weighing.WeighedRequest]) -> Requests:
    """Return requests, changed one by one with the same random numbers."""
    generator = random.Random(1)
    return [change(request, generator) for request in requests]


def smaller_shares(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Six tenths of the size of shares."""
    return _change(requests, lambda request, _: request._replace(
        units=max(10, request.units * 6 // 10))
        if 0 < request.units < weighing.WHOLE else request)


def shares_for_whole(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Six of ten requests of a whole GPU ask for a share instead."""
    shares = [request.units for request in requests
              if 0 < request.units < weighing.WHOLE]

    def change(request: weighing.WeighedRequest, generator: random.Random,
               ) -> weighing.WeighedRequest:
        if request.total_units != weighing.WHOLE or generator.random() > .6:
            return request
        return request._replace(units=generator.choice(shares))
    return _change(requests, change)


def several_gpus(requests: Sequence[weighing.WeighedRequest],
                 often: float = .25) -> Requests:
    """A quarter of the requests of a whole GPU ask for two to eight."""
    def change(request: weighing.WeighedRequest, generator: random.Random,
               ) -> weighing.WeighedRequest:
        if (request.total_units != weighing.WHOLE
                or generator.random() > often):
            return request
        gpus = generator.choice((2, 2, 2, 4, 4, 8))
        return request._replace(
            gpus=gpus, milli_vcpus=min(96_000, request.milli_vcpus * gpus),
            memory_mib=min(393_216, request.memory_mib * gpus))
    return _change(requests, change)


def more_vcpus(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Half as many vCPUs again."""
    return _change(requests, lambda request, _: request._replace(
        milli_vcpus=min(96_000, request.milli_vcpus * 3 // 2)))


def fewer_vcpus(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Half of the vCPUs."""
    return _change(requests, lambda request, _: request._replace(
        milli_vcpus=request.milli_vcpus // 2))


def bound_to_models(requests: Sequence[weighing.WeighedRequest],
                    often: float = .5) -> Requests:
    """Half of the requests with GPUs are bound to models."""
    names = [frozenset(name.split('|')) for name, _ in _MODELS]
    weights = [weight for _, weight in _MODELS]

    def change(request: weighing.WeighedRequest, generator: random.Random,
               ) -> weighing.WeighedRequest:
        if not request.gpus or generator.random() > often:
            return request
        return request._replace(
            variants=generator.choices(names, weights)[0])
    return _change(requests, change)


def several_and_bound(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """More requests of several GPUs, a quarter of all bound to models."""
    return bound_to_models(several_gpus(requests, .12), .25)


def without_gpu(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """A quarter of the requests of a share ask for no GPU at all."""
    return _change(requests, lambda request, generator: request._replace(
        gpus=0, units=0)
        if 0 < request.units < weighing.WHOLE and generator.random() < .25
        else request)


def _often(requests: Sequence[weighing.WeighedRequest], often: float,
           kind: Callable[[weighing.WeighedRequest], bool]) -> Requests:
    """Return requests with one kind left out or repeated.

    :param often: how often such a request comes, on average
    """
    generator = random.Random(1)
    return [request for request in requests
            for _ in range(int(often + generator.random())
                           if kind(request) else 1)]


def _is_share(request: weighing.WeighedRequest) -> bool:
    return 0 < request.units < weighing.WHOLE


def _is_whole(request: weighing.WeighedRequest) -> bool:
    return request.total_units >= weighing.WHOLE


def only_shares(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Nobody asks for a whole GPU."""
    return _often(requests, 0, _is_whole)


def more_shares(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Shares come three times as often."""
    return _often(requests, 3, _is_share)


def only_whole(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Nobody asks for a share."""
    return _often(requests, 0, _is_share)


def many_gpus(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Requests of two, four and eight GPUs come eight times as often."""
    return _often(requests, 8, lambda request: request.gpus > 1)


def fewer_without_gpu(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Half of the requests without GPU."""
    return _often(requests, .5, lambda request: not request.gpus)


def more_without_gpu(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Two and a half times the requests without GPU."""
    return _often(requests, 2.5, lambda request: not request.gpus)


def few_bound_to_models(
        requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """A tenth of the requests with GPUs are bound to models."""
    return bound_to_models(requests, .1)


def all_bound_to_models(
        requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """All requests with GPUs are bound to models, most to rare ones."""
    return bound_to_models(requests, 1.0)


def mostly_eight_gpus(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Requests of several GPUs, most of them of eight, ask for most GPUs."""
    return _often(requests, 40, lambda request: request.gpus > 1)


def eight_gpus_and_bound(
        requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Half of the GPUs in requests of several, six in ten bound to models."""
    return bound_to_models(
        _often(requests, 15, lambda request: request.gpus > 1), .6)


def tiny_shares(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Shares are a quarter as large and come twice as often."""
    return _often(_change(requests, lambda request, _: request._replace(
        units=max(10, request.units // 4))
        if _is_share(request) else request), 2, _is_share)


def larger_shares(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Shares are three tenths larger."""
    return _change(requests, lambda request, _: request._replace(
        units=min(950, request.units * 13 // 10))
        if _is_share(request) else request)


def more_memory(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    """Three times the RAM."""
    return _change(requests, lambda request, _: request._replace(
        memory_mib=min(262_144, request.memory_mib * 3)))


def _same(requests: Sequence[weighing.WeighedRequest]) -> Requests:
    return list(requests)


def starved_hosts(
        hosts: Sequence[weighing.HostCapacity]) -> list[weighing.HostCapacity]:
    """Hosts have six tenths of their vCPUs."""
    return [host._replace(milli_vcpus=host.milli_vcpus * 6 // 10)
            for host in hosts]


WORKLOADS: dict[str,
                Callable[[Sequence[weighing.WeighedRequest]], Requests]] = {
    'smaller-shares': smaller_shares,
    'shares-for-whole': shares_for_whole,
    'several-gpus': several_gpus,
    'more-vcpus': more_vcpus,
    'fewer-vcpus': fewer_vcpus,
    'bound-to-models': bound_to_models,
    'several-and-bound': several_and_bound,
    'without-gpu': without_gpu,
    'only-shares': only_shares,
    'more-shares': more_shares,
    'only-whole': only_whole,
    'many-gpus': many_gpus,
    'fewer-without-gpu': fewer_without_gpu,
    'more-without-gpu': more_without_gpu,
    'few-bound-to-models': few_bound_to_models,
    'all-bound-to-models': all_bound_to_models,
    'mostly-eight-gpus': mostly_eight_gpus,
    'eight-gpus-and-bound': eight_gpus_and_bound,
    'tiny-shares': tiny_shares,
    'larger-shares': larger_shares,
    'more-memory': more_memory,
    'starved-hosts': _same,
}
"""Workloads by name, of the requests of the list "default"."""

HOSTS = {'starved-hosts': starved_hosts}
"""Functions that change the hosts, by the workloads that have other hosts."""
