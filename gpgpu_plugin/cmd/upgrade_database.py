# SPDX-License-Identifier: Apache-2.0
"""Checks of gpgpu-status: schema, hosts and keys."""

from __future__ import annotations

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin import version
from gpgpu_plugin.cmd import upgrade
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.rpc import signature

_SYNC = 'run "gpgpu-manage db sync"'


def database_unavailable(url: str, reason: str) -> upgrade.Result:
    """Return that the database cannot be used.

    :param url: with a password, which is not shown
    """
    return upgrade.failure(
        f'{sa.make_url(url).render_as_string()} cannot be used: {reason}. '
        f'Correct [database] connection, or start the database')


def schema(engine: sa.Engine) -> upgrade.Result:
    """Check that the database has the schema of this code."""
    found, known = migration.version(engine), migration.revisions()
    if found == known[-1]:
        return upgrade.success(f'revision {found}')
    if found is None:
        return _without_revision(migration.tables(engine))
    return upgrade.failure(
        migration.refusal(found) or
        f'the schema is at revision {found}, and this gpgpu_plugin needs '
        f'{known[-1]}: {_SYNC}')


def _without_revision(tables: list[str]) -> upgrade.Result:
    if not tables:
        return upgrade.failure(f'the database is empty: {_SYNC}')
    return upgrade.failure(
        f'the database has no revision of gpgpu_plugin, but the tables '
        f'{upgrade.names(tables)}: [database] connection names the database '
        f'of another service. Correct the option')


def computes(session: orm.Session, timeout: float,
             digest_interval: float) -> upgrade.Result:
    """Check that each host has called recently, and has this version.

    :param timeout: seconds without a call after which a host is silent
    :param digest_interval: seconds between two calls that notice a restore
    """
    since = clock.epoch(session) - timeout
    closed = host_db.closed(session, since)
    silent = [name for name, host in closed.items()
              if host.state is host_rules.HostState.SILENT]
    restored = [f'{name} (last call {host_rules.utc(host.heard_at)})'
                for name, host in closed.items()
                if host.state is host_rules.HostState.RESTORED]
    found = []
    if silent:
        found.append(upgrade.warning(
            f'nova-compute has made no call since {host_rules.utc(since)} on '
            f'{upgrade.names(silent)}: start it there, or, if a host is gone, '
            f'run "gpgpu-manage host delete HOST"'))
    if restored:
        found.append(upgrade.warning(
            f'the database was restored, and these hosts have not reported '
            f'what they have since, so that they offer nothing: '
            f'{upgrade.names(restored)}. They report within '
            f'{host_rules.minutes_to_report(digest_interval)} min of that '
            f'call; a restart of nova-compute there hastens it'))
    others = [
        f'{name} has {other}' for name, other
        in host_db.of_other_versions(session, version.VERSION, since)]
    if others:
        found.append(upgrade.warning(
            f'this is gpgpu_plugin {version.VERSION}, and '
            f'{upgrade.names(others)}: upgrade gpgpu_plugin there, or here if '
            f'it is older, and restart nova-compute there'))
    return upgrade.join(
        found, f'{host_db.count(session)} hosts are known, none is silent, '
               f'and all have version {version.VERSION}')


def policies(session: orm.Session) -> upgrade.Result:
    """Check that GPUs can pass the cleaning policy of their variant."""
    counts, doubts = (device_db.count_by_variant(session),
                      variant_db.doubts(session))
    found = [row.value.name for row in variant_db.all(session)
             if row.id in counts and row.value.name in doubts]
    return upgrade.warning(
        f'GPUs of {upgrade.names(found)} may wait for another cleaning policy '
        f'before their first instance: "gpgpu-manage variant show" says why, '
        f'and which to choose') if found else upgrade.success(
        f'{len(counts)} variants have GPUs that can pass theirs')


# -- Checks of the keys that sign calls to gpgpu-conductor.


_Kind = gpgpu_context.CallerKind


def keys_here(conf: cfg.ConfigOpts, session: orm.Session) -> upgrade.Result:
    """Check the master key and the operator's key on this machine."""
    if not signature.is_required(conf):
        return upgrade.warning(
            'calls are not signed: whoever can send messages to the broker '
            'can take and release GPUs of any instance. Remove [gpgpu] '
            'sign_calls = false here and in nova.conf')
    try:
        masters = signature.read_masters(conf)
        operator = signature.read_caller_key(conf, _Kind.OPERATOR)
    except exception.ConfigInvalid as exc:
        return upgrade.failure(str(exc))
    path = signature.caller_path(conf, _Kind.OPERATOR)
    remedy = (f'Remove {path} and run "gpgpu-manage key create operator '
              f'{operator.name}"')
    if not _is_derived(operator, masters):
        return upgrade.failure(
            f'{path} was not made with a key in '
            f'{signature.master_path(conf)}, so gpgpu-conductor refuses it. '
            f'Copy master.key of a gpgpu-conductor that accepts it, or: '
            f'{remedy}')
    if not caller_key_db.is_valid(
            session, operator.kind, operator.name, operator.number):
        return upgrade.failure(
            f'the database does not have the key in {path}, or it was '
            f'revoked. {remedy}')
    return upgrade.success(
        f'master.key and operator.key in {conf.gpgpu.keys_path} are usable')


def _is_derived(key: signature.CallerKey,
                masters: tuple[signature.MasterKey, ...]) -> bool:
    return key in [master.derive(key.kind, key.name, key.number)
                   for master in masters]


def caller_keys(conf: cfg.ConfigOpts,
                session: orm.Session) -> upgrade.Result:
    """Check that each host, and some scheduler, has a valid key."""
    if not signature.is_required(conf):
        return upgrade.success('calls are not signed, so that none is needed')
    found = []
    without = caller_key_db.hosts_without_key(session)
    if without:
        found.append(upgrade.failure(
            f'no valid key was made for {upgrade.names(without)}, so '
            f'gpgpu-conductor refuses their calls. Run "gpgpu-manage key '
            f'create host HOST --file HOST.key" for each, and install the '
            f'file there as host.key'))
    if not caller_key_db.has_valid(session, _Kind.SCHEDULER):
        found.append(upgrade.failure(
            'no valid key was made for nova-scheduler, so that instances '
            'with GPUs find no host. Run "gpgpu-manage key create scheduler '
            'NAME", and install the file as scheduler.key'))
    return upgrade.join(
        found, 'all hosts have a key, and so has nova-scheduler')
