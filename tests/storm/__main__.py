# SPDX-License-Identifier: Apache-2.0
"""Test claims of GPUs under faults: python3 -m tests.storm

Three gpgpu-conductors and four hosts with eight GPUs each are killed, stopped
and disconnected while instances with GPUs are built, moved and deleted. Calls
are duplicated, repeated, delayed, slow or unanswered. The test runs on
PostgreSQL, then on MariaDB, over RabbitMQ. It stops as soon as two instances
use a GPU at once. At the end every GPU must be available again. The exit code
is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping

import sqlalchemy as sa

from tests.fixtures import services
from tests.storm import cloud
from tests.storm import ground_truth
from tests.storm import processes
from tests.storm import run

SERVERS = {'postgresql': services.POSTGRESQL, 'mariadb': services.MARIADB}
SECONDS = 40.0

_DOUBLED = 'A GPU was doubled'

_LINES = (
    ('claims', ('granted', 'denied', 'timed out')),
    ('builds', ('built', 'failed', 'deleted', 'unexpected')),
    ('moves', ('moved', 'confirmed', 'reverted', 'moves failed')),
    ('conductors', ('conductors killed', 'conductors stopped')),
    ('hosts', ('hosts killed', 'second starts fenced')),
    ('cuts', ('database connections cut', 'broker cut')),
    ('messages', ('duplicated', 'repeated later', 'delayed', 'unanswered',
                  'slow')),
    ('devices', ('events',)))

# Counted after the faults.
_LAST = ('second starts fenced', 'events')

_OPTIONAL = ('unexpected', 'denied', 'failed', 'moves failed',
             # A busy machine may finish few moves.
             'confirmed', 'reverted')


def _missing() -> list[str]:
    """Return one line for each server that does not answer."""
    found = []
    for url in (*SERVERS.values(), services.RABBITMQ):
        parsed = sa.make_url(url)
        try:
            socket.create_connection(
                (parsed.host or '127.0.0.1', parsed.port or 5672), 3).close()
        except OSError as exc:
            found.append(f'no {parsed.drivername} at {parsed.host}:'
                         f'{parsed.port}: {exc}')
    return found


def _print_counts(counts: dict[str, int]) -> None:
    for name, words in _LINES:
        print(f'    {name}: ' + ', '.join(
            f'{counts.get(word, 0)} {word}' for word in words), flush=True)


def _passes(name: str, setting: run.Setting, *, keep: bool) -> bool:
    """Run once; return whether all checks passed.

    :param keep: whether the logs are kept also if they did
    """
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f'gpgpu-storm-{name}-'))
    began = time.monotonic()
    print(f'{name}: {cloud.CONDUCTORS} conductors, {cloud.HOSTS} hosts of '
          f'{cloud.GPUS} GPUs, {setting.seconds:.0f} s', flush=True)
    with run.Run(setting, folder) as running:
        failure = _failure(running)
        counts = running.counts()
        # After a double use the run was stopped while GPUs were in use.
        lost = [] if failure.startswith(_DOUBLED) else running.lost()
    _print_counts(counts)
    print(f'    {failure.count(_DOUBLED)} doubled, {len(lost)} lost; '
          f'{time.monotonic() - began:.0f} s in all', flush=True)
    failure = failure or _insufficient(counts)
    if failure:
        print('\n    '.join((f'FAILED: {failure}', *lost, f'logs: {folder}')))
    elif keep:
        print(f'    logs: {folder}')
    else:
        shutil.rmtree(folder)
    return not failure


def _failure(running: run.Run) -> str:
    """Inject faults and check; return what failed, empty for nothing."""
    try:
        running.inject_faults(lambda counts: not _absent(counts) - {*_LAST})
        began = time.monotonic()
        running.check()
    except ground_truth.DoubleUse as exc:
        return f'{_DOUBLED}: {exc}'
    except (run.CheckFailed, processes.ProcessDied) as exc:
        return str(exc)
    print(f'    settled {time.monotonic() - began:.0f} s after the faults')
    return ''


def _insufficient(counts: dict[str, int]) -> str:
    """Return why a run proves nothing; empty if it proves something."""
    if counts.get('unexpected'):
        return f'{counts["unexpected"]} unexpected errors'
    absent = _absent(counts)
    return f'there were none of: {", ".join(sorted(absent))}' if absent else ''


def _absent(counts: Mapping[str, int]) -> set[str]:
    """Return what a run needs and has not had."""
    return {word for _, words in _LINES for word in words
            if not counts.get(word) and word not in _OPTIONAL}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python3 -m tests.storm')
    parser.add_argument(
        '--seed', default=str(int.from_bytes(os.urandom(4), 'big')),
        help='seed of all random choices; the default is a new one')
    parser.add_argument('--seconds', type=float, default=SECONDS,
                        help='shortest duration of the faults on each '
                             'server; default %(default)s')
    parser.add_argument('--keep', action='store_true', help='keep the logs')
    parser.add_argument('servers', nargs='*', metavar='SERVER',
                        default=list(SERVERS), help='postgresql, mariadb')
    return parser.parse_args()


def main() -> int:
    """Run the program, which the module describes."""
    # Leave the contexts, which end the processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments = _arguments()
    missing = _missing()
    if missing:
        print('\n'.join(missing))
        return os.environ.get('GPGPU_REQUIRE_SERVICES') == '1'
    print(f'Seed {arguments.seed}; again: tox -e storm -- --seed '
          f'{arguments.seed}', flush=True)
    began = time.monotonic()
    passed = []
    for name in arguments.servers:
        passed.append(_passes(name, run.Setting(
            server=SERVERS[name], seed=f'{arguments.seed}/{name}',
            seconds=arguments.seconds), keep=arguments.keep))
    print(f'{time.monotonic() - began:.0f} s: '
          f'{"all checks passed" if all(passed) else "a check FAILED"}')
    return 0 if all(passed) else 1


if __name__ == '__main__':
    sys.exit(main())
