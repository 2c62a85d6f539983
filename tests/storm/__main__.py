#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Claims of GPUs in a storm: python3 -m tests.storm

Three gpgpu-conductors and four hosts with eight GPUs each are killed, stopped
and cut off while the hosts claim, use, release and clean; messages are
repeated, late, slow and unanswered. On PostgreSQL, then on MariaDB, over
RabbitMQ. A GPU that two instances use at a time ends it at once; afterwards
every GPU must be available again. Exit code 1 when a claim is false.
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

import sqlalchemy as sa

from tests.fixtures import services
from tests.storm import processes
from tests.storm import storm
from tests.storm import truth

SERVERS = {'postgresql': services.POSTGRESQL, 'mariadb': services.MARIADB}
SECONDS = 40.0

_DOUBLED = 'A GPU was doubled'

_LINES = (
    ('claims', ('granted', 'denied', 'timed out')),
    ('builds', ('built', 'failed', 'deleted', 'unexpected')),
    ('conductors', ('conductors killed', 'conductors stopped')),
    ('hosts', ('hosts killed',)),
    ('cuts', ('database connections cut', 'broker cut')),
    ('messages', ('twice', 'repeated later', 'late', 'unanswered', 'slow')),
    ('ledger', ('events',)))


def _missing() -> list[str]:
    """Return what is wrong with servers that do not answer."""
    found = []
    for url in (*SERVERS.values(), services.RABBITMQ):
        made = sa.make_url(url)
        try:
            socket.create_connection(
                (made.host or '127.0.0.1', made.port or 5672), 3).close()
        except OSError as exc:
            found.append(f'no {made.drivername} at {made.host}:{made.port}: '
                         f'{exc}')
    return found


def _report(counts: dict[str, int]) -> None:
    for name, words in _LINES:
        print(f'    {name}: ' + ', '.join(
            f'{counts.get(word, 0)} {word}' for word in words), flush=True)


def _prove(name: str, setting: storm.Setting, *, keep: bool) -> bool:
    """Let one storm blow; return whether all claims hold.

    :param keep: the logs also if they do
    """
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f'gpgpu-storm-{name}-'))
    began = time.monotonic()
    print(f'{name}: {storm.CONDUCTORS} conductors, {storm.HOSTS} hosts of '
          f'{storm.GPUS} GPUs, {setting.seconds:.0f} s', flush=True)
    with storm.Storm(setting, folder) as cloud:
        wrong = _wrong(cloud)
        counts = cloud.totals()
        # Earlier than that, GPUs are in use.
        lost = [] if wrong.startswith(_DOUBLED) else cloud.lost()
    _report(counts)
    print(f'    {wrong.count(_DOUBLED)} doubled, {len(lost)} lost; '
          f'{time.monotonic() - began:.0f} s in all', flush=True)
    wrong = wrong or _too_calm(counts)
    if wrong:
        print('\n    '.join((f'FALSE: {wrong}', *lost, f'logs: {folder}')))
    elif keep:
        print(f'    logs: {folder}')
    else:
        shutil.rmtree(folder)
    return not wrong


def _wrong(cloud: storm.Storm) -> str:
    """Let a storm blow; return which claim is false, empty: none is."""
    try:
        cloud.blow()
        calm = time.monotonic()
        cloud.calm_down()
    except truth.Doubled as exc:
        return f'{_DOUBLED}: {exc}'
    except (storm.Wrong, processes.ProcessDied) as exc:
        return str(exc)
    print(f'    settled {time.monotonic() - calm:.0f} s after the storm')
    return ''


def _too_calm(counts: dict[str, int]) -> str:
    """Return why a storm proves nothing; empty: it proves something."""
    if counts.get('unexpected'):
        return f'{counts["unexpected"]} errors that nobody expects'
    absent = [word for name, words in _LINES for word in words
              if not counts.get(word) and word not in (
                  'unexpected', 'denied', 'failed')]
    return f'it proves nothing without: {", ".join(absent)}' if absent else ''


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python3 -m tests.storm')
    parser.add_argument(
        '--seed', default=str(int.from_bytes(os.urandom(4), 'big')),
        help='of what is broken when; the default is a new one')
    parser.add_argument('--seconds', type=float, default=SECONDS,
                        help='on each server; default %(default)s')
    parser.add_argument('--keep', action='store_true', help='keep the logs')
    parser.add_argument('servers', nargs='*', metavar='SERVER',
                        default=list(SERVERS), help='postgresql, mariadb')
    return parser.parse_args()


def main() -> int:
    """Run the program; see the module."""
    # Whatever ends it, the processes end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments = _arguments()
    missing = _missing()
    if missing:
        print('\n'.join(missing))
        return os.environ.get('GPGPU_REQUIRE_SERVICES') == '1'
    print(f'Seed {arguments.seed}; again: tox -e storm -- --seed '
          f'{arguments.seed}', flush=True)
    began = time.monotonic()
    held = []
    for name in arguments.servers:
        held.append(_prove(name, storm.Setting(
            server=SERVERS[name], seed=f'{arguments.seed}/{name}',
            seconds=arguments.seconds), keep=arguments.keep))
    print(f'{time.monotonic() - began:.0f} s: '
          f'{"all claims hold" if all(held) else "a claim is FALSE"}')
    return 0 if all(held) else 1


if __name__ == '__main__':
    sys.exit(main())
