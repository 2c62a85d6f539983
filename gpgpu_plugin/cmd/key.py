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
"""``gpgpu-manage key``: the keys that sign calls to gpgpu-conductor.

They run where gpgpu-conductor runs, since they need its database and its
master key.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable

from cliff import command
from cliff import lister

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import database
from gpgpu_plugin.cmd import paging
from gpgpu_plugin.conductor import caller_keys
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.rpc import key_files
from gpgpu_plugin.rpc import signature

_KINDS = tuple(str(kind) for kind in gpgpu_context.CallerKind)


class KeyInit(database.Command, command.Command):
    """Make the master key of a cloud, from which all others are derived."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        path = key_files.master_path(self.database_conf)
        _write(path, lambda: signature.new_master().to_text())
        self.app.stdout.write(f'{path}\n')
        self.note(f'copy {path} to the other machines on which '
                  f'gpgpu-conductor runs, and give it to the user of '
                  f'gpgpu-conductor there and here')


class KeyCreate(database.Command, command.Command):
    """Make a key of a caller; its earlier keys stay valid."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_caller(parser)
        parser.add_argument(
            '--file', type=pathlib.Path, metavar='FILE',
            help='new file for the key (default: KIND.key in [gpgpu] '
                 'keys_path)')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        conf = self.database_conf
        kind = gpgpu_context.CallerKind(parsed_args.kind)
        path = parsed_args.file or key_files.caller_path(conf, kind)
        _write(path, lambda: caller_keys.make(
            self.database, key_files.masters(conf)[0], kind,
            parsed_args.name).to_text())
        self.app.stdout.write(f'{path}\n')


class KeyRevoke(database.Command, command.Command):
    """Revoke keys of a caller; conductors refuse them within 10 seconds."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_caller(parser)
        parser.add_argument(
            '--number', type=paging.number, metavar='NUMBER',
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


class KeyList(database.Command, lister.Lister):
    """List the keys that were made."""

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        with self.database.reader() as session:
            return (('Kind', 'Name', 'Number', 'Created At', 'Revoked At'), [
                (key.kind, key.name, key.number,
                 key.created_at.isoformat(timespec='seconds'),
                 key.revoked_at.isoformat(timespec='seconds')
                 if key.revoked_at else '-')
                for key in caller_key_db.all_keys(session)])


def _add_caller(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('kind', choices=_KINDS, help='kind of the caller')
    parser.add_argument(
        'name', metavar='NAME',
        help='name of the caller: of a host, [DEFAULT] host of its '
             'nova-compute; of others, any name')


def _write(path: pathlib.Path, make: Callable[[], str]) -> None:
    try:
        key_files.write(path, make)
    except FileExistsError:
        raise exception.Conflict(
            kind='key file', name=path,
            reason='it exists; a key is never overwritten') from None
