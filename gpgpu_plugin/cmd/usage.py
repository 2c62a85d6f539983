# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage usage``: who used GPUs, for how long."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import pathlib
import typing
from collections.abc import Sequence

from cliff import command
from cliff import lister

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import durable
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.cmd import names as names_cmd
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.gpu_map import text as text_mod
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import history

_LIST = ('uuid', 'project_id', 'instance_uuid', 'flavor', 'host', 'address',
         'variant', 'vgpu_type', 'began_at', 'ended_at', 'seconds')
_LONG = (*_LIST[:2], 'user_id', *_LIST[2:6], 'device_uuid', 'serial',
         *_LIST[6:8], 'resource_class', *_LIST[8:])
_BY = (history.UsageKey.PROJECT, history.UsageKey.VARIANT,
       history.UsageKey.VGPU_TYPE)
_HOUR = 3600


class _Usage(reach.ConductorCommand, lister.Lister):
    """Base of a command about the usage within a period."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--project', metavar='ID',
                            help='only usage by this project')
        parser.add_argument('--user', metavar='ID',
                            help='only usage by this user')
        parser.add_argument('--host', help='only usage on this host, which '
                                           'may be deleted')
        parser.add_argument('--instance', metavar='SERVER',
                            help='only usage by this instance')
        parser.add_argument('--variant', help='only usage of this variant, '
                                              'which may be deleted')
        listing.add_period(parser)
        return parser


class UsageList(_Usage):
    """List which instance used which device, when, and for how long."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--long', action='store_true',
                            help='show all columns')
        listing.add_page_arguments(parser, 'its UUID')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        return listing.rows(self.api.usage_list(
            gpgpu_context.admin(), _query(self, parsed_args),
            limit=parsed_args.limit, marker=parsed_args.marker),
            _LONG if parsed_args.long else _LIST)


class UsageSummary(_Usage):
    """Sum usage by project, variant and vGPU type, or by other keys."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--by', type=_names, default=list(_BY), metavar='KEY,...',
            help=f'what to sum by, some of {", ".join(history.UsageKey)} '
                 f'(default: {",".join(_BY)})')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        by = parsed_args.by
        found = self.api.usage_summary(
            gpgpu_context.admin(), _query(self, parsed_args), by)
        return ([listing.title(name) for name in (
                    *by, 'usages', 'seconds', 'hours')],
                [[listing.Cell(value) for value in (
                    *row.values, row.usages, row.seconds,
                    round(row.seconds / _HOUR, 2))] for row in found])


def _query(command: reach.ConductorCommand, parsed_args: argparse.Namespace,
           ) -> history.UsageQuery:
    return history.UsageQuery(
        project_id=parsed_args.project, user_id=parsed_args.user,
        host=parsed_args.host, variant=parsed_args.variant,
        instance_uuid=names_cmd.optional_server_uuid(command,
                                                     parsed_args.instance),
        since=parsed_args.since, until=parsed_args.until)


def _names(text: str) -> list[str]:
    """Return the keys of a sum, each once, for argparse.

    :raises ArgumentTypeError: one is unknown
    """
    names = list(dict.fromkeys(text.split(',')))
    for name in names:
        if name not in list(history.UsageKey):
            raise argparse.ArgumentTypeError(
                f'{name!r} is none of {", ".join(history.UsageKey)}')
    return names


# -- ``gpgpu-manage usage export``: usage for a billing system, as CSV.


_FIELDS = tuple(field.name for field in dataclasses.fields(history.UsageInfo))


class UsageExport(reach.ConductorCommand, command.Command):
    """Write ended usage that was not exported before, as CSV."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'file', nargs='?', type=pathlib.Path, metavar='FILE',
            help='file to write, which must not exist (default: standard '
                 'output). Usage is marked as exported after it is on '
                 'disk: after a crash, a usage may be exported again with '
                 'the same UUID. If standard output is a pipe or a '
                 'terminal, nothing is marked, because the program that '
                 'reads it may fail')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if parsed_args.file is None:
            uuids = self._write(self.app.stdout)
            if not durable.sync(self.app.stdout):
                self.note(
                    f'wrote {text_mod.counted(len(uuids), "usage")}, and '
                    f'marked none as exported, because standard output '
                    f'is not a file on a disk; name a FILE')
                return
        else:
            uuids = self._to_file(parsed_args.file)
        marked = self._mark(uuids)
        self.note(f'exported {text_mod.counted(len(uuids), "usage")}')
        if marked < len(uuids):
            self.note(f'{len(uuids) - marked} of them were exported by '
                      f'another run at the same time; keep one of two rows '
                      f'with the same UUID')

    def _to_file(self, path: pathlib.Path) -> list[str]:
        """Write a file; return the UUIDs of the usages in it.

        :raises Conflict: it exists
        :raises HostError: it cannot be written
        """
        try:
            with durable.new(path) as file:
                return self._write(file)
        except FileExistsError:
            raise exception.Conflict(
                kind='file', name=path,
                reason='it exists, and nobody may have read it yet; give '
                       'another name') from None
        except OSError as exc:
            raise exception.HostError(
                path=path, reason=f'cannot be written: {exc.strerror}; name '
                                  f'another file') from None

    def _write(self, file: typing.IO[str]) -> list[str]:
        """Write one page after the other; return the UUIDs in them."""
        writer = csv.DictWriter(file, _FIELDS, lineterminator='\n')
        writer.writeheader()
        uuids: list[str] = []
        while True:
            page = self.api.usage_unexported(
                gpgpu_context.admin(), limit=admin.PAGE_SIZE,
                marker=uuids[-1] if uuids else None)
            writer.writerows(map(_row, page))
            uuids += [usage.uuid for usage in page]
            if len(page) < admin.PAGE_SIZE:
                return uuids

    def _mark(self, uuids: Sequence[str]) -> int:
        """Mark usages as exported; return how many were not yet."""
        return sum(
            self.api.usage_mark_exported(
                gpgpu_context.admin(), uuids[first:first + admin.PAGE_SIZE])
            for first in range(0, len(uuids), admin.PAGE_SIZE))


def _row(usage: history.UsageInfo) -> dict[str, object]:
    """Return the fields of a usage, none of which is a formula."""
    return {name: listing.without_formula(value)
            for name, value in dataclasses.asdict(usage).items()}
