# SPDX-License-Identifier: Apache-2.0
"""``python -m bench simulate``: compare policies on a trace of requests.

No service and no configuration is needed.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import pathlib
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence

from bench.simulation import arrivals
from bench.simulation import policies
from bench.simulation import trace
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import group
from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import weighing

COLUMNS = ('policy', 'seed', 'allocated_percent', 'at95', 'refused',
           'decisions_per_second')
_MOST_LOAD = 10.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='python -m bench simulate', description='Place a trace of '
        'requests in a simulated cloud by one policy.')
    parser.add_argument(
        '--nodes', required=True, metavar='CSV',
        help='hosts: cpu_milli, memory_mib, gpu (their number), model')
    parser.add_argument(
        '--requests', required=True, metavar='CSV',
        help='requests: cpu_milli, memory_mib, num_gpu, gpu_milli (1000 is a '
             'whole GPU), and optionally gpu_spec (models, "|" between them) '
             'and linked (1: the GPUs must be exactly one link partition)')
    parser.add_argument(
        '--link-partitions', action='append', default=[],
        metavar='[MODEL=]FILE',
        help=f'{group.HELP}; of all nodes, or of those of one model, '
             f'repeatable; see "gpgpu-manage variant set"')
    parser.add_argument(
        '--policy', required=True, metavar='NAME',
        help='one of ' + ', '.join(policies.NAMES))
    parser.add_argument(
        '--load', default='1.3', metavar='NUMBER',
        help='number of GPUs that all requests together request, as a '
             'multiple of the GPUs of the cloud (default: %(default)s)')
    parser.add_argument(
        '--seed', nargs='+', action='extend', metavar='N',
        help='seed of the order of hosts and requests, one row for each '
             '(default: 42)')
    parser.add_argument(
        '--learn-mix', action='store_true',
        help='learn from arrivals which requests are common, instead of '
             'knowing it from the start')
    parser.add_argument(
        '-f', '--format', choices=('table', 'json'), default='table',
        help='default: %(default)s')
    return parser


def main(argv: Sequence[str]) -> int:
    """Print a row for each seed; return 1 if the input is wrong."""
    arguments = _parser().parse_args(argv)
    try:
        rows = _rows(arguments)
    except exception.GPUPluginException as exc:
        print(f'python -m bench simulate: {exc}', file=sys.stderr)
        return 1
    if arguments.format == 'json':
        print(json.dumps(rows, indent=2))
    else:
        print(*(f'{name:>20}' for name in COLUMNS))
        for row in rows:
            print(*(f'{"-" if value is None else value:>20}'
                    for value in row.values()))
    return 0


def _rows(arguments: argparse.Namespace) -> list[dict[str, object]]:
    if policies.make(arguments.policy) is None:
        raise exception.Invalid(
            field='--policy', value=arguments.policy,
            expected='one of ' + ', '.join(policies.NAMES))
    load = _load(arguments.load)
    seeds = [_seed(text) for text in arguments.seed or ['42']]
    tables = [(text, _table(text)) for text in arguments.link_partitions]
    hosts = trace.hosts(_lines(arguments.nodes), arguments.nodes)
    for text, table in tables:
        hosts = _with_links(hosts, text, table)
    requests = trace.requests(_lines(arguments.requests), arguments.requests)
    return [_row(hosts, requests, arguments.policy, load, seed,
                 arguments.learn_mix) for seed in seeds]


def _table(text: str) -> fabric.LinkTable:
    """Return the table of ``FILE`` or ``MODEL=FILE``."""
    return fabric.parse_link_table(group.read_link_file(
        pathlib.Path(text.rpartition('=')[2])))


def _with_links(hosts: list[weighing.HostCapacity], text: str,
                table: fabric.LinkTable) -> list[weighing.HostCapacity]:
    """Return hosts with the link partitions of a table.

    :param text: as of ``_table``
    """
    model, separator, _ = text.rpartition('=')
    models = {host.variant for host in hosts}
    if separator and model not in models:
        raise exception.Invalid(
            field='--link-partitions', value=text,
            expected='FILE, or MODEL=FILE with one of the models '
                     + ', '.join(sorted(models)))
    return trace.with_links(hosts, table, model if separator else None)


def _row(hosts: list[weighing.HostCapacity],
         requests: list[weighing.WeighedRequest],
         policy: str, load: float, seed: int,
         learn_mix: bool) -> dict[str, object]:
    started = time.perf_counter()
    outcome = arrivals.simulate(
        hosts, requests, functools.partial(_make, policy, seed),
        load=load, seed=seed, learn_mix=learn_mix)
    seconds = time.perf_counter() - started
    return dict(zip(COLUMNS, (
        policy, seed, round(outcome.allocated_percent, 2),
        None if outcome.at95 is None else round(outcome.at95, 2),
        outcome.refused, round(outcome.decisions / seconds)), strict=True))


def _make(name: str, seed: int) -> weighing.Policy:
    policy = policies.make(name, seed)
    assert policy is not None
    return policy


def _load(text: str) -> float:
    try:
        load = float(text)
    except ValueError:
        load = math.nan
    if not 0.01 <= load <= _MOST_LOAD:
        raise exception.Invalid(field='--load', value=text,
                                expected='a number from 0.01 to 10')
    return load


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise exception.Invalid(field='--seed', value=text,
                                expected='a whole number') from None


def _lines(path: str) -> Iterator[str]:
    """Yield the lines of a file.

    :raises HostError: it cannot be read
    """
    try:
        with pathlib.Path(path).open(encoding='utf-8-sig',
                                     newline='') as file:
            yield from file
    except OSError as exc:
        raise exception.HostError(
            path=path, reason=f'cannot be read: {exc.strerror}') from None
