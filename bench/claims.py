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
"""Claims per second through our whole path, beside Placement's.

In both, 64 clients in 8 processes claim 200 devices of 25 hosts one by one,
on PostgreSQL. Ours goes over RabbitMQ to two conductors; Placement's WSGI
application runs inside each client process, without a network.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

import sqlalchemy as sa

from bench import placement_peer
from bench import race
from bench import report
from tests.fixtures import services


@contextlib.contextmanager
def database(server: str) -> Iterator[str]:
    """Return the context of an empty database, as its URL."""
    name = f'gpgpu_bench_{uuid.uuid4().hex[:8]}'
    engine = sa.create_engine(server, isolation_level='AUTOCOMMIT')
    with engine.connect() as connection:
        connection.execute(sa.text(f'CREATE DATABASE {name}'))
    try:
        yield sa.make_url(server).set(database=name).render_as_string(
            hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(sa.text(
                f'DROP DATABASE {name} WITH (FORCE)'))
        engine.dispose()


def _at(latencies: tuple[float, ...], part: float) -> float:
    return 1e3 * latencies[min(
        len(latencies) - 1, int(len(latencies) * part))]


def run() -> report.Result:
    """Run both races; a double or a lost claim of ours is wrong."""
    with database(services.POSTGRESQL) as url:
        ours = race.run(race.Setting(
            database=url, transport=services.RABBITMQ))
    with database(services.POSTGRESQL) as url:
        peer = placement_peer.run(url)
    wrong = [*ours.errors[:3]]
    if ours.doubles or ours.lost or ours.granted != 200:
        wrong.append(f'{ours.granted} of 200 granted, {ours.doubles} '
                     f'devices with two owners, {ours.lost} claims lost')
    rows = [report.Row(
        what='claims, 64 clients, PostgreSQL', unit='1/s',
        ours=ours.granted / ours.seconds, peer=peer.accepted / peer.seconds,
        goal=report.Goal(at_least=10, ratio=True),
        note=f'peer: Placement; devices with two owners: ours '
             f'{ours.doubles}, peer {peer.doubles}')]
    for name, part in (('p50', 0.5), ('p99', 0.99)):
        rows.append(report.Row(
            what=f'claim {name}', unit='ms', ours=_at(ours.latencies, part),
            peer=_at(peer.latencies, part),
            goal=report.Goal(at_most=1000) if name == 'p99' else None))
    return report.Result(name='claims', rows=tuple(rows), wrong=tuple(wrong))
