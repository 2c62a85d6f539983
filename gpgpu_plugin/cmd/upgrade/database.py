# SPDX-License-Identifier: Apache-2.0
"""Checks of the schema, and of the hosts that the database knows."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin import version
from gpgpu_plugin.cmd.upgrade import result
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import host_state

_SYNC = 'run "gpgpu-manage db sync"'


def unavailable(url: str, reason: str) -> result.Result:
    """Return that the database cannot be used.

    :param url: with a password, which is not shown
    """
    return result.failure(
        f'{sa.make_url(url).render_as_string()} cannot be used: {reason}. '
        f'Correct [database] connection, or start the database')


def schema(engine: sa.Engine) -> result.Result:
    """Check that the database has the schema of this code."""
    found, known = migration.version(engine), migration.revisions()
    if found == known[-1]:
        return result.success(f'revision {found}')
    if found is None:
        return _without_revision(migration.tables(engine))
    return result.failure(
        migration.refusal(found) or
        f'the schema is at revision {found}, and this gpgpu_plugin needs '
        f'{known[-1]}: {_SYNC}')


def _without_revision(tables: list[str]) -> result.Result:
    if not tables:
        return result.failure(f'the database is empty: {_SYNC}')
    return result.failure(
        f'the database has no revision of gpgpu_plugin, but the tables '
        f'{result.names(tables)}: [database] connection names the database '
        f'of another service. Correct the option')


def computes(session: orm.Session, timeout: float,
             digest_interval: float) -> result.Result:
    """Check that each host has called recently, and has this version.

    :param timeout: seconds without a call after which a host is silent
    :param digest_interval: seconds between two calls that notice a restore
    """
    since = clock.epoch(session) - timeout
    closed = host_db.closed(session, since)
    silent = [name for name, host in closed.items()
              if host.state is host_state.HostState.SILENT]
    restored = [f'{name} (last call {host_state.utc(host.heard_at)})'
                for name, host in closed.items()
                if host.state is host_state.HostState.RESTORED]
    found = []
    if silent:
        found.append(result.warning(
            f'nova-compute has made no call since {host_state.utc(since)} on '
            f'{result.names(silent)}: start it there, or, if a host is gone, '
            f'run "gpgpu-manage host delete HOST"'))
    if restored:
        found.append(result.warning(
            f'the database was restored, and these hosts have not reported '
            f'what they have since, so that they offer nothing: '
            f'{result.names(restored)}. They report within '
            f'{host_state.minutes_to_report(digest_interval)} min of that '
            f'call; a restart of nova-compute there hastens it'))
    others = [
        f'{name} has {other}' for name, other
        in host_db.of_other_versions(session, version.VERSION, since)]
    if others:
        found.append(result.warning(
            f'this is gpgpu_plugin {version.VERSION}, and '
            f'{result.names(others)}: upgrade gpgpu_plugin there, or here if '
            f'it is older, and restart nova-compute there'))
    return result.join(
        found, f'{host_db.count(session)} hosts are known, none is silent, '
               f'and all have version {version.VERSION}')


def policies(session: orm.Session) -> result.Result:
    """Check that GPUs can pass the cleaning policy of their variant."""
    counts, doubts = (device_db.count_by_variant(session),
                      variant_db.doubts(session))
    found = [row.value.name for row in variant_db.all(session)
             if row.id in counts and row.value.name in doubts]
    return result.warning(
        f'GPUs of {result.names(found)} may wait for another cleaning policy '
        f'before their first instance: "gpgpu-manage variant show" says why, '
        f'and which to choose') if found else result.success(
        f'{len(counts)} variants have GPUs that can pass theirs')
