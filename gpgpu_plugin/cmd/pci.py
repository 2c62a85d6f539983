# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-host list`` and ``record``: the PCI functions of this host.

No service is needed. Which instance uses a function is in the files of
nova-compute; only the list of this host itself loads what reads them.
"""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
import typing
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from cliff import columns as cliff_columns
from cliff import command
from cliff import lister

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.host.discovery import machine as machine_host
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.fake import machine as machine_mod
from gpgpu_plugin.host.fake import recording

# For annotations alone.
if typing.TYPE_CHECKING:
    import types

COLUMNS = ('id', 'address', 'vendor', 'device', 'subsystem_vendor',
           'subsystem', 'revision', 'class', 'driver', 'numa_node',
           'iommu_group', 'slot', 'used_by', 'instance')
_TEXT = ('vendor', 'device', 'subsystem', 'subsystem_vendor', 'revision',
         'id', 'driver')


_SYSFS = '/sys'
_LOOKUP = 'gpgpu_plugin.cmd.designation'

UNKNOWN = 'unknown'
"""Value of the instance if no record of nova-compute can be read."""


def _add_root(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        '--sysfs-root', default=_SYSFS, metavar='DIR',
        help=f'directory of the sysfs to read (default: {_SYSFS})')


class _Value(cliff_columns.FormattableColumn[object]):
    """A value that people read as ``-`` if it is None."""

    def human_readable(self) -> str:
        return '-' if self._value is None else str(self._value)

    def machine_readable(self) -> object:
        return self._value


class PCIList(base.Command, lister.Lister):
    """List every PCI function of this host."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        where = parser.add_mutually_exclusive_group()
        _add_root(where)
        where.add_argument(
            '--machine', metavar='FILE',
            help='read a file that "gpgpu-host record" wrote on '
                 'another host, or the fake machine of this name')
        parser.add_argument(
            '--text', action='store_true',
            help='print one line per function: ' + ' '.join(_TEXT))
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        scan = (_scan_machine(parsed_args.machine) if parsed_args.machine
                else _scan(parsed_args.sysfs_root))
        for problem in scan.problems:
            self.note(problem)
        instance_of = self._instance_of(parsed_args)
        self._rows = [
            {name: getattr(function,
                           'class_code' if name == 'class' else name)
             for name in COLUMNS if name != 'instance'}
            | {'instance': instance_of(function.id)}
            for function in scan.functions]
        return COLUMNS, [[_Value(row[name]) for name in COLUMNS]
                         for row in self._rows]

    def _instance_of(self, parsed_args: argparse.Namespace,
                     ) -> Callable[[str], str | None]:
        """Return a function that says which instance uses a function."""
        if parsed_args.machine or parsed_args.sysfs_root != _SYSFS:
            return lambda _id: UNKNOWN
        lookup: types.ModuleType = importlib.import_module(_LOOKUP)
        users, doubt = lookup.read_instances(self)

        def instance_of(function_id: str) -> str | None:
            instances = users.get(function_id, ())
            return ', '.join(instances) or (UNKNOWN if doubt else None)
        return instance_of

    def produce_output(self, parsed_args: argparse.Namespace,
                       column_names: Sequence[str],
                       data: Iterable[Sequence[object]]) -> int:
        if not parsed_args.text:
            result: int = super().produce_output(
                parsed_args, column_names, data)
            return result
        for row in self._rows:
            print(*(row[name] or '-' for name in _TEXT),
                  file=self.app.stdout)
        return 0


def _scan(root: str) -> scanner.Scan:
    sysfs = sysfs_mod.Sysfs(root)
    return scanner.scan(sysfs, machine_host.SlotLabels(sysfs))


def _scan_machine(name: str) -> scanner.Scan:
    machine = machine_mod.load(name)
    with tempfile.TemporaryDirectory() as root:
        machine_mod.build(machine, root)
        return _scan(root)


class PCIRecord(base.Command, command.Command):
    """Record this host's PCI functions, for a bug report or a fake machine."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_root(parser)
        parser.add_argument(
            '--with-serials', action='store_true',
            help='keep serial numbers; by default each is replaced by '
                 'another number')
        parser.add_argument(
            'file', nargs='?', metavar='FILE',
            help='file to create (default: standard output)')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        root = parsed_args.sysfs_root
        text = machine_mod.dump(
            recording.record(sysfs_mod.Sysfs(root),
                             with_serials=parsed_args.with_serials),
            _reference(root))
        if root == _SYSFS and os.geteuid() != 0:
            self.note('only root can read the whole configuration space and '
                      'VPD; the recording lacks them')
        if parsed_args.file is None:
            self.app.stdout.write(text)
            return
        _write_new(parsed_args.file, text)
        self.app.stdout.write(
            f'recorded in {parsed_args.file}, serial numbers '
            f'{"included" if parsed_args.with_serials else "masked"}\n')


def _reference(root: str) -> str:
    """Return where the recording comes from, without naming the host."""
    if root != _SYSFS:
        return 'a sysfs in a directory'
    kernel = os.uname()
    return f'Linux {kernel.release} {kernel.version} {kernel.machine}'


def _write_new(path: str, text: str) -> None:
    """Create a file.

    :raises Conflict: it exists
    :raises HostError: it cannot be created
    """
    try:
        with open(path, 'x', encoding='utf-8') as file:
            file.write(text)
    except FileExistsError:
        raise exception.Conflict(
            kind='file', name=path,
            reason='it exists already; name another file') from None
    except OSError as exc:
        raise exception.HostError(
            path=path, reason=f'cannot be written: {exc.strerror}') from None
