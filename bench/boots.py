# SPDX-License-Identifier: Apache-2.0
"""Servers of two GPUs for exactly as many places, beside Nova's own PCI.

Each cloud is a process of its own (bench/boot_cloud.py), so that its CPU time
is that of its services alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing

from bench import report

MODES = ('one by one', 'at once')
_PEERS = {'in-tree': "Nova's PCI passthrough",
          'tuned': "Nova's PCI passthrough, tuned",
          'without': 'servers without GPU'}


class Figures(typing.TypedDict):
    """Outcome of the boots of one mode.

    ``cpu`` is seconds of the whole cloud for each server.
    """

    servers: int
    active: int
    cpu: float


def run(hosts: int = 4) -> report.Result:
    """Boot servers in the cloud of the plugin and in those of its peers."""
    return result(boot('plugin', hosts), {
        name: boot(cloud, hosts) for cloud, name in _PEERS.items()})


def result(ours: dict[str, Figures],
           peers: dict[str, dict[str, Figures]]) -> report.Result:
    """Return the rows of the clouds' figures by mode."""
    return report.Result(
        name='boots', rows=tuple(
            row for mode in MODES for name, peer in peers.items()
            for row in _rows(name, mode, ours[mode], peer[mode])),
        wrong=tuple(
            f'{figures["servers"] - figures["active"]} of '
            f'{figures["servers"]} servers were refused, {mode}'
            for mode, figures in ours.items()
            if figures['active'] != figures['servers']))


def _rows(name: str, mode: str, ours: Figures,
          peer: Figures) -> list[report.Row]:
    refused = peer['servers'] - peer['active']
    return [
        report.Row(what=f'ACTIVE of {ours["servers"]} servers, {mode}',
                   unit='', ours=float(ours['active']),
                   peer=float(peer['active']),
                   note=f'peer: {name}, which refused {refused}'),
        report.Row(what=f'CPU for each server, {mode}', unit='ms',
                   ours=1000 * ours['cpu'], peer=1000 * peer['cpu'],
                   note=f'peer: {name}')]


def boot(cloud: str, hosts: int) -> dict[str, Figures]:
    """Return the figures of one cloud by mode.

    :raises RuntimeError: the cloud failed
    """
    done = subprocess.run(
        [sys.executable, '-m', 'bench.boot_cloud', cloud, str(hosts)],
        capture_output=True, text=True, check=False,
        env={**os.environ, 'OS_NOVA_DISABLE_EVENTLET_PATCHING': '1'})
    if done.returncode:
        raise RuntimeError(f'{cloud}: {done.stderr[-3000:]}')
    figures: dict[str, Figures] = json.loads(done.stdout.splitlines()[-1])
    return figures
