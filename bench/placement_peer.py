# SPDX-License-Identifier: Apache-2.0
"""Placement as the peer of our claims, with one provider for every device.

That is how Nova models PCI devices in Placement: a nested provider for each
device with a total of 1. Every client asks for candidates, writes the
allocation, and on 409 tries another candidate. Placement's real WSGI
application runs inside each client process on a shared database, or in API
processes (bench.placement_http).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import multiprocessing
import multiprocessing.synchronize
import queue
import random
import time
import typing
import uuid
from collections.abc import Callable

import webob
from oslo_config import cfg
from placement import conf as placement_conf
from placement import db_api
from placement import deploy

from bench import crowd

RESOURCE_CLASS = 'CUSTOM_BENCH_GPU'
MICROVERSION = 'placement 1.39'
# A client gives up after so many refusals in a row.
MAX_REFUSALS = 20
_NAMESPACE = uuid.UUID('6f0b0f0e-3a55-4c3f-9a63-6a9a6c2f3b11')


# A client process's claims (device, latency, time) and its number of errors.
_Answer = tuple[list[tuple[str, float, float]], int]


class Response(typing.Protocol):
    """An answer, as far as clients need it."""

    @property
    def status_int(self) -> int:
        """Return the status."""

    @property
    def json(self) -> typing.Any:
        """Return the decoded body."""


class Client(typing.Protocol):
    """Client of Placement, in its process or over HTTP."""

    def call(self, method: str, path: str, body: object = None) -> Response:
        """Send one request."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeerResult:
    """Result of all clients.

    :ivar seconds: from the start to the last accepted claim
    :ivar latencies: seconds of each accepted claim, refusals before it
        included
    :ivar doubles: devices that were allocated to two or more consumers
    :ivar errors: answers of 500 and above
    """

    accepted: int
    seconds: float
    latencies: tuple[float, ...]
    doubles: int
    errors: int


class PlacementClient:
    """Placement's application in this process.

    :param sync: create the schema and load traits and resource classes;
        exactly one process does it, before the others start
    :param exact: without its own retries after a conflict, with which it
        allocates devices twice
    """

    def __init__(self, url: str, *, sync: bool = False,
                 exact: bool = False) -> None:
        config = cfg.ConfigOpts()
        placement_conf.register_opts(config)
        config.set_override('connection', url, group='placement_database')
        config([], project='placement', default_config_files=[])
        config.set_override('auth_strategy', 'noauth2', group='api')
        config.set_override('sync_on_startup', sync,
                            group='placement_database')
        # As its own documentation recommends for wide provider trees.
        config.set_override('max_allocation_candidates', 1000,
                            group='placement')
        config.set_override('allocation_candidates_generation_strategy',
                            'breadth-first', group='placement')
        if exact:
            config.set_override('allocation_conflict_retry_count', 1,
                                group='placement')
        db_api.configure(config)
        self._app = deploy.loadapp(config)

    def call(self, method: str, path: str,
             body: object = None) -> webob.Response:
        """Send one request, as admin, at the newest microversion."""
        request = webob.Request.blank(path, method=method, headers={
            'X-Auth-Token': 'admin', 'OpenStack-API-Version': MICROVERSION})
        if body is not None:
            request.content_type = 'application/json'
            request.json = body
        return self.send(request)

    def send(self, request: webob.Request) -> webob.Response:
        """Answer a request."""
        return request.get_response(self._app)


def provider(host: int, device: int | None = None) -> str:
    """Return the UUID of a host's root provider or of a device's."""
    return str(uuid.uuid5(_NAMESPACE, f'{host}/{device}'))


def set_up(url: str, hosts: int, devices: int) -> None:
    """Create the schema, and providers of hosts and their devices."""
    client = PlacementClient(url, sync=True)

    def ok(method: str, path: str, body: object = None) -> None:
        response = client.call(method, path, body)
        if response.status_int >= 300:
            raise RuntimeError(f'{method} {path}: {response.text}')

    ok('PUT', f'/resource_classes/{RESOURCE_CLASS}')
    for host in range(hosts):
        ok('POST', '/resource_providers',
           {'name': f'host{host}', 'uuid': provider(host)})
        for device in range(devices):
            ok('POST', '/resource_providers', {
                'name': f'host{host}_{device}',
                'uuid': provider(host, device),
                'parent_provider_uuid': provider(host)})
            ok('PUT', f'/resource_providers/{provider(host, device)}'
                      '/inventories',
               {'resource_provider_generation': 0, 'inventories': {
                   RESOURCE_CLASS: {'total': 1}}})


def _claim(client: Client, outcome: collections.Counter[str],
           ) -> str | None:
    """Claim one device; return its provider's UUID, None if none is free."""
    for _ in range(MAX_REFUSALS):
        answer = client.call(
            'GET', '/allocation_candidates?limit=1000&resources='
                   f'{RESOURCE_CLASS}:1')
        if answer.status_int >= 500:
            outcome['errors'] += 1
            continue
        candidates = answer.json['allocation_requests']
        if not candidates:
            return None
        candidate = random.choice(candidates)
        response = client.call(
            'PUT', f'/allocations/{uuid.uuid4()}', {
                **candidate, 'project_id': 'bench', 'user_id': 'bench',
                'consumer_generation': None, 'consumer_type': 'INSTANCE'})
        if response.status_int < 300:
            return str(next(iter(candidate['allocations'])))
        outcome['errors' if response.status_int >= 500 else 'refused'] += 1
    return None


def _inside(url: str, _number: int, *, exact: bool = False) -> Client:
    return PlacementClient(url, exact=exact)


def _work(connect: Callable[[int], Client], number: int, threads: int,
          barrier: multiprocessing.synchronize.Barrier,
          results: queue.Queue[_Answer]) -> None:
    # Placement logs a warning for every lost race, and most races are lost.
    logging.disable(logging.CRITICAL)
    client = connect(number)
    outcome: collections.Counter[str] = collections.Counter()
    claims: list[tuple[str, float, float]] = []

    def claimer(_number: int) -> None:
        while True:
            began = time.perf_counter()
            device = _claim(client, outcome)
            if device is None:
                return
            now = time.perf_counter()
            claims.append((device, now - began, now))

    crowd.run(barrier, threads, lambda: client.call('GET', '/traits'),
              claimer)
    results.put((claims, outcome['errors']))


def prepare(url: str, hosts: int, devices: int) -> None:
    """Call ``set_up`` in a process, since one uses one database only."""
    child = multiprocessing.get_context('spawn').Process(
        target=set_up, args=(url, hosts, devices))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError('the database of Placement was not set up')


def run(url: str, *, hosts: int = 25, devices: int = 8,
        exact: bool = False) -> PeerResult:
    """Let all clients claim devices until none is free.

    :param url: SQLAlchemy URL of an empty database
    :param exact: see PlacementClient
    """
    prepare(url, hosts, devices)
    return compete(functools.partial(_inside, url, exact=exact))


def compete(connect: Callable[[int], Client], *, processes: int = 8,
            threads: int = 8) -> PeerResult:
    """Let all clients claim devices of a prepared database.

    :param connect: returns the client of a process, given its number
    """
    context = multiprocessing.get_context('spawn')
    barrier = context.Barrier(processes + 1)
    results = context.Queue()
    children = [
        context.Process(target=_work, args=(
            connect, number, threads, barrier, results), daemon=True)
        for number in range(processes)]
    for child in children:
        child.start()
    barrier.wait(timeout=600)
    began = time.perf_counter()
    answers = [results.get(timeout=3000) for _ in children]
    for child in children:
        child.join(timeout=30)
    claims = [claim for part, _ in answers for claim in part]
    owners = collections.Counter(device for device, _, _ in claims)
    return PeerResult(
        accepted=len(claims),
        seconds=max((at for _, _, at in claims), default=began) - began,
        latencies=tuple(sorted(latency for _, latency, _ in claims)),
        doubles=sum(count > 1 for count in owners.values()),
        errors=sum(errors for _, errors in answers))
