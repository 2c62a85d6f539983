# SPDX-License-Identifier: Apache-2.0
"""Checks of the keys that sign calls to gpgpu-conductor."""

from __future__ import annotations

from oslo_config import cfg
from sqlalchemy import orm

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd.upgrade import result
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.rpc import key_files
from gpgpu_plugin.rpc import signature

_Kind = gpgpu_context.CallerKind


def here(conf: cfg.ConfigOpts, session: orm.Session) -> result.Result:
    """Check the master key and the operator's key on this machine."""
    if not key_files.is_required(conf):
        return result.warning(
            'calls are not signed: whoever can send messages to the broker '
            'can take and release GPUs of any instance. Remove [gpgpu] '
            'sign_calls = false here and in nova.conf')
    try:
        masters = key_files.masters(conf)
        operator = key_files.of_caller(conf, _Kind.OPERATOR)
    except exception.ConfigInvalid as exc:
        return result.failure(str(exc))
    path = key_files.caller_path(conf, _Kind.OPERATOR)
    remedy = (f'Remove {path} and run "gpgpu-manage key create operator '
              f'{operator.name}"')
    if not _is_derived(operator, masters):
        return result.failure(
            f'{path} was not made with a key in '
            f'{key_files.master_path(conf)}, so gpgpu-conductor refuses it. '
            f'Copy master.key of a gpgpu-conductor that accepts it, or: '
            f'{remedy}')
    if not caller_key_db.is_valid(
            session, operator.kind, operator.name, operator.number):
        return result.failure(
            f'the database does not have the key in {path}, or it was '
            f'revoked. {remedy}')
    return result.success(
        f'master.key and operator.key in {conf.gpgpu.keys_path} are usable')


def _is_derived(key: signature.CallerKey,
                masters: tuple[signature.MasterKey, ...]) -> bool:
    return key in [master.derive(key.kind, key.name, key.number)
                   for master in masters]


def of_callers(conf: cfg.ConfigOpts,
               session: orm.Session) -> result.Result:
    """Check that each host, and some scheduler, has a valid key."""
    if not key_files.is_required(conf):
        return result.success('calls are not signed, so that none is needed')
    found = []
    without = caller_key_db.hosts_without_key(session)
    if without:
        found.append(result.failure(
            f'no valid key was made for {result.names(without)}, so '
            f'gpgpu-conductor refuses their calls. Run "gpgpu-manage key '
            f'create host HOST --file HOST.key" for each, and install the '
            f'file there as host.key'))
    if not caller_key_db.has_valid(session, _Kind.SCHEDULER):
        found.append(result.failure(
            'no valid key was made for nova-scheduler, so that instances '
            'with GPUs find no host. Run "gpgpu-manage key create scheduler '
            'NAME", and install the file as scheduler.key'))
    return result.join(
        found, 'all hosts have a key, and so has nova-scheduler')
