# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage key``: the keys that sign calls to gpgpu-conductor.

They run where gpgpu-conductor runs, since they need its database and its
master key.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
from collections.abc import Callable

from cliff import command
from cliff import lister
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import db
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.conductor import callers
from gpgpu_plugin.db import api
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.rpc import signature

_KINDS = tuple(str(kind) for kind in gpgpu_context.CallerKind)


class KeyInit(db.DatabaseCommand, command.Command):
    """Make the master key of a cloud, from which all others are derived."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        path = signature.master_path(self.database_conf)
        _write(path, lambda: signature.new_master().to_text())
        self.app.stdout.write(f'{path}\n')
        self.note(f'copy {path} to the other machines on which '
                  f'gpgpu-conductor runs, and give it to the user of '
                  f'gpgpu-conductor there and here')


class KeyRotate(db.DatabaseCommand, command.Command):
    """Replace the master key; the old one is accepted until --finish."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--finish', action='store_true',
            help='remove the old master keys; refused while a valid key is '
                 'derived from one of them')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        database, conf = self.database, self.database_conf
        if parsed_args.finish:
            _check_unused(database, signature.read_masters(conf)[0])
        signature.rotate_master(conf, keep=not parsed_args.finish)
        path = signature.master_path(conf)
        self.app.stdout.write(f'{path}\n')
        self.note(f'copy {path} to the other machines on which '
                  f'gpgpu-conductor runs, and restart gpgpu-conductor on each')
        if not parsed_args.finish:
            self.note('then replace the keys that "key list" shows as old, '
                      'revoke them, and run "gpgpu-manage key rotate '
                      '--finish"')


def _check_unused(database: api.Database,
                  master: signature.MasterKey) -> None:
    """Refuse to end older master keys that callers depend on.

    :raises Conflict: a valid key is not derived from this one
    """
    with database.reader() as session:
        old = [f'{key.kind} {key.name} {key.number}'
               for key in caller_key_db.all_keys(session)
               if key.master_id != master.id and not key.revoked_at]
    if old:
        raise exception.Conflict(
            kind='master key', name=master.id,
            reason=f'{len(old)} valid keys are derived from older ones, such '
                   f'as {", ".join(old[:3])}; replace them with '
                   f'"gpgpu-manage key create", and revoke them')


class KeyCreate(db.DatabaseCommand, command.Command):
    """Make a key for each of some callers; earlier keys stay valid."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_caller(parser, nargs='*')
        parser.add_argument(
            '--all', action='store_true',
            help='make a key for each host that gpgpu-conductor knows')
        where = parser.add_mutually_exclusive_group()
        where.add_argument(
            '--file', type=pathlib.Path, metavar='FILE',
            help='new file for the key (default: KIND.key in [gpgpu] '
                 'keys_path)')
        where.add_argument(
            '--dir', type=pathlib.Path, metavar='DIR',
            help='folder for the keys, each in a new file NAME.key')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        database, conf = self.database, self.database_conf
        kind = gpgpu_context.CallerKind(parsed_args.kind)
        names = _names(database, kind, parsed_args)
        for name in names:
            signature.check_name(name)
        if parsed_args.dir is None:
            paths = [parsed_args.file or signature.caller_path(conf, kind)]
        else:
            paths = [parsed_args.dir / f'{name}.key' for name in names]
        for path in paths:
            if path.exists():
                raise _exists(path)
        for name, path in zip(names, paths, strict=True):
            _write(path, functools.partial(
                _make, conf, database, kind, name))
            self.app.stdout.write(f'{path}\n')


def _names(database: api.Database, kind: gpgpu_context.CallerKind,
           parsed_args: argparse.Namespace) -> list[str]:
    """Return for whom keys are made, each name once."""
    names: list[str] = list(dict.fromkeys(parsed_args.name))
    if parsed_args.all:
        if names or kind is not gpgpu_context.CallerKind.HOST:
            raise exception.Invalid(
                field='--all', value=' '.join((kind, *names)),
                expected='only "host", without names')
        with database.reader() as session:
            names = host_db.names(session)
    elif not names:
        raise exception.Invalid(
            field='name', value='', expected='the name of a caller, or --all')
    if parsed_args.dir is None and (parsed_args.all or len(names) > 1):
        raise exception.Invalid(
            field='name', value=' '.join(names),
            expected='one name, or --dir DIR for the files of several')
    return names


def _make(conf: cfg.ConfigOpts, database: api.Database,
          kind: gpgpu_context.CallerKind, name: str) -> str:
    master = signature.read_masters(conf)[0]
    return callers.make_keys(database, master, kind, name).to_text()


class KeyRevoke(db.DatabaseCommand, command.Command):
    """Revoke keys of a caller; conductors refuse them within 10 seconds."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_caller(parser)
        parser.add_argument(
            '--number', type=listing.number_argument, metavar='NUMBER',
            help='revoke only the key of this number, as in "key list" '
                 '(default: all keys of the caller)')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        revoked = self.database.write(
            lambda session: caller_key_db.revoke(
                session, parsed_args.kind, parsed_args.name,
                parsed_args.number))
        if not revoked:
            raise exception.NotFound(
                kind='valid key of',
                name=f'{parsed_args.kind} {parsed_args.name}' + (
                    f' with the number {parsed_args.number}'
                    if parsed_args.number else ''))
        self.app.stdout.write(
            f'revoked {", ".join(map(str, revoked))} of {parsed_args.kind} '
            f'{parsed_args.name}\n')


class KeyList(db.DatabaseCommand, lister.Lister):
    """List the keys that were made, and whether their master key is old."""

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        database, masters = self.database, self._masters()
        with database.reader() as session:
            return (('Kind', 'Name', 'Number', 'Created At', 'Revoked At',
                     'Master Key'), [
                (key.kind, key.name, key.number,
                 key.created_at.isoformat(timespec='seconds'),
                 key.revoked_at.isoformat(timespec='seconds')
                 if key.revoked_at else '-',
                 masters.get(key.master_id, 'unknown'))
                for key in caller_key_db.all_keys(session)])

    def _masters(self) -> dict[str, str]:
        """Return "new" or "old" for each master key that is known here."""
        try:
            found = signature.read_masters(self.database_conf)
        except exception.ConfigInvalid:
            return {}
        return {master.id: 'old' if index else 'new'
                for index, master in enumerate(found)}


def _add_caller(parser: argparse.ArgumentParser,
                nargs: str | None = None) -> None:
    parser.add_argument('kind', choices=_KINDS, help='kind of the caller')
    parser.add_argument(
        'name', metavar='NAME', nargs=nargs,
        help='name of the caller: of a host, [DEFAULT] host of its '
             'nova-compute; of others, any name')


def _write(path: pathlib.Path, make: Callable[[], str]) -> None:
    try:
        signature.write_key(path, make)
    except FileExistsError:
        raise _exists(path) from None


def _exists(path: pathlib.Path) -> exception.Conflict:
    return exception.Conflict(
        kind='key file', name=path,
        reason='it exists; a key is never overwritten')
