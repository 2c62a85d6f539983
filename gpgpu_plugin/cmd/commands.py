# SPDX-License-Identifier: Apache-2.0
"""The commands of the plugin's programs, with an example or more of each.

Nothing that a command needs is imported before the command is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from importlib import metadata

from cliff import command
from cliff import commandmanager

HEADING = 'Example::'
"""First line of a command's examples; the reference is reStructuredText."""

PROGRAMS: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]] = {
    'gpgpu-manage': {
        'Hosts and devices': {
            'host delete': ('host:HostDelete', 'gpu1'),
            'host drain': ('host:HostDrain', 'gpu1'),
            'host list': ('host:HostList', ''),
            'host show': ('host:HostShow', 'gpu1'),
            'host takeover': ('host:HostTakeover', 'gpu1'),
            'host undrain': ('host:HostUndrain', 'gpu1'),
            'device accept': (
                'device:DeviceAccept',
                'gpu1 0000:3b:00.0 0000:5e:00.0 --reason "burned in and '
                'cleared"'),
            'device cleanings': (
                'device:DeviceCleanings',
                'gpu1 0000:3b:00.0 --long'),
            'device list': (
                'device:DeviceList',
                '--host gpu1',
                '--faulty -c Host -c Address -c Health -c Reason',
                '--state quarantined -f json'),
            'device release': ('device:DeviceRelease', 'gpu1 0000:3b:00.0'),
            'device replace': ('device:DeviceReplace', 'gpu1 0000:3b:00.0'),
            'device show': (
                'device:DeviceShow',
                'gpu1 0000:3b:00.0',
                '4d1f8b6c-2a97-4e53-8c1b-7a3f60d95e02'),
            'hold add': (
                'device:HoldAdd',
                'gpu1 0000:3b:00.0 --kind quarantined --reason "Xid 79"',
                'gpu1 0000:3b:00.0 --kind disabled --reason "until the '
                'audit is over"',
                'gpu1 0000:3b:00.0 --kind retired'),
            'hold list': (
                'device:HoldList',
                '--host gpu1',
                '--kind failed -f json'),
            'hold remove': (
                'device:HoldRemove',
                'gpu1 0000:3b:00.0 --kind disabled'),
        },
        'What is offered': {
            'variant create': (
                'variant:VariantCreate',
                'H100 --vendor 10de --device 2330 --cleaning-policy scrub '
                '--memory-mib 81559',
                'H100 --vendor 10de --device 2330 --dry-run'),
            'variant delete': ('variant:VariantDelete', 'H100'),
            'variant import': (
                'variant:VariantImport',
                '',
                '--only NVIDIA_H100_SXM5_80GB',
                'variants.yaml'),
            'variant list': ('variant:VariantList', ''),
            'variant set': (
                'variant:VariantSet',
                'H100 --trait CUSTOM_FAST --mix-policy equal_size',
                'H100 --unset trait'),
            'variant show': ('variant:VariantShow', 'H100'),
            'group links': ('group:GroupLinks', 'gpu1 H100'),
            'group list': ('group:GroupList', '--variant H100'),
            'group set': (
                'group:GroupSet',
                'gpu1 H100 --allocation-policy breadth_first',
                'gpu1 H100 --unset allocation-policy',
                'gpu1 H100 --link-partitions partitions.json'),
            'group show': ('group:GroupShow', 'gpu1 H100'),
            'vgpu-type disable': (
                'vgpu_type:VGPUTypeDisable',
                'gpu1 L4 L4-24Q'),
            'vgpu-type enable': ('vgpu_type:VGPUTypeEnable', 'L4 L4-4Q'),
            'vgpu-type list': (
                'vgpu_type:VGPUTypeList',
                '--enabled --cloud',
                '--variant L4 --type L4-4Q --long'),
            'flavor set': (
                'flavor:FlavorSet',
                'gpu.2xh100 --gpu H100=2 --topology same_switch',
                'vgpu.l4 --gpu L4/L4-4Q=1 --dry-run'),
            'flavor unset': ('flavor:FlavorUnset', 'gpu.2xh100'),
        },
        'Instances': {
            'assignment end': (
                'assignment:AssignmentEnd',
                'gpu1 --instance d9428888-122b-41e1-b85c-5d3b8d7d4f2e'),
            'assignment list': (
                'assignment:AssignmentList',
                '--host gpu1 --long',
                '--instance d9428888-122b-41e1-b85c-5d3b8d7d4f2e'),
            'why-not': (
                'why_not:WhyNot',
                '--flavor gpu.2xh100',
                '--server web-1 --host gpu1'),
            'what-if drain': (
                'what_if:WhatIfDrain',
                'gpu1',
                'gpu1 gpu2 -f json'),
        },
        'History': {
            'event list': (
                'event:EventList',
                '--host gpu1 --from 2026-11-01 --long'),
            'usage export': ('usage:UsageExport', '2026-10.csv'),
            'usage list': (
                'usage:UsageList',
                '--project 6f7a3c --from yesterday --to today',
                '--project 6f7a3c --from 2026-10-01 --to 2026-11-01'),
            'usage summary': (
                'usage:UsageSummary',
                '--from 2026-10-01 --to 2026-11-01 --by project,variant'),
        },
        'The cloud as a whole': {
            'status': ('attention:StatusCommand', '', '-f json'),
            'doctor': ('doctor:Doctor', '', '--host gpu1 --fix'),
            'map': ('map:Map', '--by owner', '--html gpus.html'),
        },
        'The service': {
            'conductor ping': (
                'conductor_ping:ConductorPing',
                '',
                '--this-host --wait 5'),
            'db purge': ('db:DBPurge', '--before 2026-10-31'),
            'db restored': ('db:DBRestored', ''),
            'db sync': ('db:DBSync', ''),
            'db version': ('db:DBVersion', ''),
            'key create': (
                'key:KeyCreate',
                'host gpu1 --file gpu1.key',
                'host gpu1 gpu2 --dir keys',
                'host --all --dir new-keys'),
            'key init': ('key:KeyInit', ''),
            'key list': ('key:KeyList', ''),
            'key revoke': ('key:KeyRevoke', 'host gpu1 --number 2'),
            'key rotate': ('key:KeyRotate', '', '--finish'),
            'complete': ('complete:Complete', ''),
        },
    },
    'gpgpu-host': {
        'This machine': {
            'designate': ('designation:Designate', '0000:3b:00.0'),
            'designated': ('designation:Designated', ''),
            'list': ('pci:PCIList', '', '--machine hgx-h100-8 --text'),
            'record': ('pci:PCIRecord', 'gpu1.yaml'),
            'undesignate': ('designation:Undesignate', '0000:3b:00.0'),
            'complete': ('complete:Complete', ''),
        },
    },
}
"""Class and examples by the command's name, below a heading of the help."""

_MODULES = 'gpgpu_plugin.cmd.'


class CommandManager(commandmanager.CommandManager):
    """Command manager that imports only the command that is called.

    cliff's own manager imports all modules, and with them openstacksdk,
    SQLAlchemy and oslo.messaging, which takes a second.
    """

    def add_command(self, name: str,
                    command_class: type[command.Command]) -> None:
        """Add a command of cliff, unless the plugin has one of this name."""
        if name not in self.commands:
            super().add_command(name, command_class)

    def load_commands(self, namespace: str) -> None:
        """Add the commands of a program.

        :param namespace: its name
        """
        for group in PROGRAMS[namespace].values():
            for name, (path, *_) in group.items():
                self.commands[name] = metadata.EntryPoint(
                    name, _MODULES + path, namespace)


def examples(name: str) -> list[str]:
    """Return the lines of a command's examples.

    :param name: may begin with that of the program
    """
    return [f'{program} {found} {arguments}'.strip()
            for program, groups in PROGRAMS.items()
            for commands in groups.values()
            for found, (_, *shown) in commands.items()
            if name in (found, f'{program} {found}') for arguments in shown]


def epilog(name: str) -> str | None:
    """Return the text after the options of a command's help."""
    lines = examples(name)
    return '\n'.join([HEADING, '', *(f'    {line}' for line in lines)]
                     ) if lines else None
