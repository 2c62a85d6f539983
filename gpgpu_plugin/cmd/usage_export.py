# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage usage export``: usage for a billing system, as CSV."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import pathlib
import typing
from collections.abc import Sequence

from cliff import command

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import durable
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.gpu_map import text
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import usage as objects

_FIELDS = tuple(field.name for field in dataclasses.fields(objects.UsageInfo))


class UsageExport(reach.Command, command.Command):
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
                self.note(f'wrote {text.counted(len(uuids), "usage")}, and '
                          f'marked none as exported, because standard output '
                          f'is not a file on a disk; name a FILE')
                return
        else:
            uuids = self._to_file(parsed_args.file)
        marked = self._mark(uuids)
        self.note(f'exported {text.counted(len(uuids), "usage")}')
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


def _row(usage: objects.UsageInfo) -> dict[str, object]:
    """Return the fields of a usage, none of which is a formula."""
    return {name: columns.without_formula(value)
            for name, value in dataclasses.asdict(usage).items()}
