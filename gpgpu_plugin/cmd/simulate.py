# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage simulate``: compare policies on a trace of requests.

No service and no configuration is needed.
"""

from __future__ import annotations

import argparse
import functools
import math
import pathlib
import time
from collections.abc import Iterator

from cliff import lister

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import link_file
from gpgpu_plugin.domain import link_table
from gpgpu_plugin.domain.simulation import arrivals
from gpgpu_plugin.domain.simulation import trace
from gpgpu_plugin.domain.weighing import host as host_mod
from gpgpu_plugin.domain.weighing import policies
from gpgpu_plugin.domain.weighing import policy as policy_mod

COLUMNS = ('policy', 'seed', 'allocated_percent', 'at95', 'refused',
           'decisions_per_second')
_MOST_LOAD = 10.0


class Simulate(base.Command, lister.Lister):
    """Place a trace of requests in a simulated cloud by one policy."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--nodes', required=True, metavar='CSV',
            help='hosts: cpu_milli, memory_mib, gpu (their number), model')
        parser.add_argument(
            '--requests', required=True, metavar='CSV',
            help='requests: cpu_milli, memory_mib, num_gpu, gpu_milli (1000 '
                 'is a whole GPU), and optionally gpu_spec (models, "|" '
                 'between them) and linked (1: the GPUs must be exactly one '
                 'link partition)')
        parser.add_argument(
            '--link-partitions', action='append', default=[],
            metavar='[MODEL=]FILE',
            help=f'{link_file.HELP}; of all nodes, or of those of one model, '
                 f'repeatable; see "variant set"')
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
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        if policies.make(parsed_args.policy) is None:
            raise exception.Invalid(
                field='--policy', value=parsed_args.policy,
                expected='one of ' + ', '.join(policies.NAMES))
        load = _load(parsed_args.load)
        seeds = [_seed(text) for text in parsed_args.seed or ['42']]
        tables = [(text, _table(text))
                  for text in parsed_args.link_partitions]
        hosts = trace.hosts(_lines(parsed_args.nodes), parsed_args.nodes)
        for text, table in tables:
            hosts = _with_links(hosts, text, table)
        requests = trace.requests(
            _lines(parsed_args.requests), parsed_args.requests)
        return COLUMNS, [
            _row(hosts, requests, parsed_args.policy, load, seed,
                 parsed_args.learn_mix) for seed in seeds]


def _table(text: str) -> link_table.LinkTable:
    """Return the table of ``FILE`` or ``MODEL=FILE``."""
    return link_table.parse(link_file.read(
        pathlib.Path(text.rpartition('=')[2])))


def _with_links(hosts: list[host_mod.Host], text: str,
                table: link_table.LinkTable) -> list[host_mod.Host]:
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


def _row(hosts: list[host_mod.Host], requests: list[host_mod.Request],
         policy: str, load: float, seed: int,
         learn_mix: bool) -> list[object]:
    started = time.perf_counter()
    outcome = arrivals.simulate(
        hosts, requests, functools.partial(_make, policy, seed),
        load=load, seed=seed, learn_mix=learn_mix)
    seconds = time.perf_counter() - started
    return [policy, seed, round(outcome.allocated_percent, 2),
            columns.Cell(None if outcome.at95 is None
                         else round(outcome.at95, 2)),
            outcome.refused, round(outcome.decisions / seconds)]


def _make(name: str, seed: int) -> policy_mod.Policy:
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
