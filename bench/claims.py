# SPDX-License-Identifier: Apache-2.0
"""Claims per second through the plugin's whole path, beside Placement's.

64 clients in 8 processes claim the 8 devices of each of 25 hosts one by one,
and those of 100 hosts, where the contention for the last ones is a smaller
part. Each finds out what is free, claims a free device, and tries again if it
was refused. The plugin's go over RabbitMQ to two conductors, and see what is
free as schedulers do.
Placement's WSGI application runs inside each client process, without a
network, or in two API processes that clients call over HTTP, as Nova does.
Minimal claims, of one statement without rules, show what faster claims could
gain. Conductors that refuse each claim unread show the cost of messages; their
clients, and those they are compared with, claim on every host without seeing
what is free.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import uuid
from collections.abc import Callable
from collections.abc import Iterator

import sqlalchemy as sa

from bench import minimal_claim
from bench import outcome
from bench import placement_http
from bench import placement_peer
from bench import race
from bench import report
from gpgpu_plugin.objects import claim as claim_obj
from tests.fixtures import services

_CLAIMERS = 64
_HOSTS = 25
_LARGER = 100
_DEVICES = 8
"""Number of devices of a host."""


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
        force = ' WITH (FORCE)' if engine.dialect.name == 'postgresql' else ''
        with engine.connect() as connection:
            connection.execute(sa.text(f'DROP DATABASE {name}{force}'))
        engine.dispose()


@contextlib.contextmanager
def _sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f'sqlite:///{pathlib.Path(folder, "gpgpu.sqlite")}'


def _at(latencies: tuple[float, ...], part: float) -> float:
    return 1e3 * latencies[min(
        len(latencies) - 1, int(len(latencies) * part))]


def _rate(ours: outcome.Outcome) -> float:
    return ours.granted / ours.seconds


def _wrong(name: str, ours: outcome.Outcome,
           hosts: int = _HOSTS) -> list[str]:
    """Return devices with two owners, lost claims and missing grants."""
    wrong = [f'{name}: {error}' for error in ours.errors[:3]]
    devices = hosts * _DEVICES
    if ours.doubles or ours.lost or ours.granted != devices:
        wrong.append(
            f'{name}: {ours.granted} of {devices} granted, {ours.doubles} '
            f'devices with two owners, {ours.lost} claims lost')
    return wrong


def _race(url: str, conductors: int = 2, *, hosts: int = _HOSTS,
          view: bool = True,
          claim: Callable[..., claim_obj.Claim] | None = None,
          ) -> outcome.Outcome:
    return race.run(race.Setting(
        database=url, transport=services.RABBITMQ, hosts=hosts,
        devices=_DEVICES, conductors=conductors, view=view, claim=claim))


def run_beside_peer(hosts: int = _HOSTS) -> report.Result:
    """Run the race on PostgreSQL and that of Placement."""
    with database(services.POSTGRESQL) as url:
        ours = _race(url, hosts=hosts)
    with database(services.POSTGRESQL) as url:
        peer = placement_peer.run(url, hosts=hosts, devices=_DEVICES)
    with database(services.POSTGRESQL) as url:
        minimal = _race(url, hosts=hosts, claim=minimal_claim.take_any)
    where = f'64 clients, {hosts} hosts, PostgreSQL'
    rows = [report.Row(
        what=f'claims, {where}', unit='1/s', ours=_rate(ours),
        peer=peer.accepted / peer.seconds,
        goal=report.Goal(at_least=10, ratio=True),
        note=f'peer: Placement; devices with two owners: ours '
             f'{ours.doubles}, peer {peer.doubles}')]
    for name, part in (('p50', 0.5), ('p99', 0.99)):
        rows.append(report.Row(
            what=f'claim {name}, {hosts} hosts', unit='ms',
            ours=_at(ours.latencies, part),
            peer=_at(peer.latencies, part),
            goal=report.Goal(at_most=1000) if name == 'p99' else None))
    rows.append(report.Row(
        what=f'minimal claims, {where}', unit='1/s', ours=_rate(minimal),
        peer=peer.accepted / peer.seconds,
        note='one statement without rules: what faster claims could gain'))
    return report.Result(name='claims', rows=tuple(rows),
                         wrong=(*_wrong('PostgreSQL', ours, hosts),
                                *_wrong('minimal claims', minimal, hosts)))


def run_beside_http() -> report.Result:
    """Run the race on PostgreSQL and those of Placement over HTTP.

    By default, Placement tries again itself after a conflict, and allocates
    devices twice.
    """
    with database(services.POSTGRESQL) as url:
        ours = _race(url)
    rows = []
    for exact, setting in ((False, ''), (True, ', no retries of its own')):
        with database(services.POSTGRESQL) as url:
            peer = placement_http.run(
                url, hosts=_HOSTS, devices=_DEVICES, exact=exact)
        rows.append(report.Row(
            what=f'claims, 64 clients, {_HOSTS} hosts, PostgreSQL',
            unit='1/s', ours=_rate(ours), peer=peer.accepted / peer.seconds,
            goal=report.Goal(at_least=10, ratio=True),
            note=f'peer: Placement over HTTP{setting}; devices with two '
                 f'owners: ours {ours.doubles}, peer {peer.doubles}'))
    return report.Result(name='claims', rows=tuple(rows),
                         wrong=tuple(_wrong('PostgreSQL', ours)))


def _run_beside_messages() -> report.Result:
    """Run a race that sees nothing, and one that is refused unseen."""
    with database(services.POSTGRESQL) as url:
        unseen = _race(url, view=False)
    with database(services.POSTGRESQL) as url:
        refused = _race(url, view=False, claim=minimal_claim.refuse)
    calls = (_DEVICES + _CLAIMERS) * _HOSTS
    return report.Result(name='claims', rows=(
        report.Row(
            what='claims of clients that do not see what is free',
            unit='1/s', ours=_rate(unseen)),
        report.Row(
            what='calls, granted or refused', unit='1/s',
            ours=calls / unseen.all_seconds,
            limit=_CLAIMERS * _HOSTS / refused.all_seconds,
            note='limit: the same messages, refused without a look')),
        wrong=(*_wrong('unseen', unseen), *refused.errors[:3]))


def _run_elsewhere() -> report.Result:
    """Run the races of the other databases."""
    with database(services.MARIADB) as url:
        mariadb = _race(url)
    with _sqlite() as url:
        sqlite = _race(url, conductors=1)
    return report.Result(name='claims', rows=(
        report.Row(what='claims, MariaDB', unit='1/s', ours=_rate(mariadb)),
        report.Row(what='claims, SQLite, 1 conductor', unit='1/s',
                   ours=_rate(sqlite))),
        wrong=(*_wrong('MariaDB', mariadb), *_wrong('SQLite', sqlite)))


def run() -> report.Result:
    """Run all races."""
    parts = (run_beside_peer(), run_beside_peer(_LARGER),
             run_beside_http(), _run_beside_messages(), _run_elsewhere())
    return report.Result(
        name='claims', rows=tuple(row for part in parts for row in part.rows),
        wrong=tuple(wrong for part in parts for wrong in part.wrong))
