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
"""``gpgpu-manage pci list``: what the scanner sees, without any service."""

from __future__ import annotations

import argparse
import typing

from cliff import columns
from cliff import lister

from gpgpu_plugin.host import scanner
from gpgpu_plugin.host import sysfs as sysfs_mod

COLUMNS = ('id', 'address', 'vendor', 'device', 'subsystem_vendor',
           'subsystem', 'revision', 'class', 'driver', 'numa_node',
           'iommu_group', 'slot', 'used_by')
_TEXT = ('vendor', 'device', 'subsystem', 'subsystem_vendor', 'revision',
         'id', 'driver')


class Unknown(columns.FormattableColumn[typing.Any]):
    """A value for people: ``-`` where it is unknown or none."""

    def human_readable(self) -> str:
        return '-' if self._value is None else str(self._value)

    def machine_readable(self) -> typing.Any:
        return self._value


class PCIList(lister.Lister):
    """List every PCI function of this host."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--sysfs-root', default='/sys', metavar='DIR',
            help='where the sysfs of the host is (default: /sys)')
        parser.add_argument(
            '--text', action='store_true',
            help='one line a function: ' + ' '.join(_TEXT))
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        scan = scanner.scan(sysfs_mod.Sysfs(parsed_args.sysfs_root))
        for problem in scan.problems:
            self.app.stderr.write(f'gpgpu-manage: {problem}\n')
        self._rows = [
            {name: getattr(function,
                           'class_code' if name == 'class' else name)
             for name in COLUMNS} for function in scan.functions]
        return COLUMNS, [[Unknown(row[name]) for name in COLUMNS]
                         for row in self._rows]

    def produce_output(self, parsed_args: argparse.Namespace,
                       column_names: typing.Any, data: typing.Any) -> int:
        if not parsed_args.text:
            result: int = super().produce_output(
                parsed_args, column_names, data)
            return result
        for row in self._rows:
            print(*(row[name] or '-' for name in _TEXT),
                  file=self.app.stdout)
        return 0
