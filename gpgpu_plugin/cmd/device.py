# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage device``: GPUs, VFs and mdev rows."""

from __future__ import annotations

import argparse

from cliff import lister
from cliff import show

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import device_name
from gpgpu_plugin.cmd import paging
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.cmd import server_name
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import health as health_rules
from gpgpu_plugin.domain import variant as variant_rules

_LIST = ('uuid', 'host', 'address', 'type', 'variant', 'vgpu_type',
         'shown_state', 'enabled', 'health', 'host_state', 'used_by',
         'project_id', 'serial', 'numa_node', 'slot', 'link_partitions',
         'stable_id', 'reason')
_FAULTY = (*_LIST, 'health_reason')
_ALL = (*_FAULTY, 'present', 'companions', 'replaced_by')


class DeviceList(reach.Command, lister.Lister):
    """List devices."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--host', help='only devices of this host')
        parser.add_argument('--variant', help='only devices of this variant')
        parser.add_argument(
            '--state', choices=[*map(str, device_rules.SHOWN_STATES)],
            help='only devices shown in this state')
        parser.add_argument(
            '--type', choices=list(variant_rules.TYPES),
            help='only devices of variants of this type')
        parser.add_argument('--vgpu-type', metavar='NAME',
                            help='only vGPUs of this type')
        parser.add_argument(
            '--health', choices=[str(found) for found in health_rules.Health],
            help='only GPUs with this health')
        parser.add_argument(
            '--faulty', action='store_true',
            help='only devices that are missing or quarantined, and GPUs '
                 'whose health is degraded or failed')
        parser.add_argument('--project', metavar='ID',
                            help='only devices assigned to instances of this '
                                 'project')
        parser.add_argument('--instance', '--used-by', dest='instance',
                            metavar='INSTANCE',
                            help='only devices assigned to this instance')
        parser.add_argument('--all', action='store_true',
                            help='also retired devices, with further columns')
        paging.add_arguments(parser, 'its UUID')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        api, context = self.api, gpgpu_context.admin()
        if parsed_args.variant:
            api.variant_show(context, parsed_args.variant)
        shown = _FAULTY if parsed_args.faulty else _LIST
        return columns.rows(
            api.device_list(
                context, host=parsed_args.host,
                variant=parsed_args.variant, state=parsed_args.state,
                used_by=server_name.optional(self, parsed_args.instance),
                project=parsed_args.project, type=parsed_args.type,
                vgpu_type=parsed_args.vgpu_type, health=parsed_args.health,
                faulty=parsed_args.faulty, include_retired=parsed_args.all,
                limit=parsed_args.limit, marker=parsed_args.marker),
            _ALL if parsed_args.all else shown)


class OneDevice(reach.Command, show.ShowOne):
    """Base of a command about one device."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        device_name.add_argument(parser)
        return parser

    def uuid(self, parsed_args: argparse.Namespace) -> str:
        """Return the UUID of the device."""
        return device_name.uuid_of(self.api, parsed_args.device)


class DeviceShow(OneDevice):
    """Show a device."""

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Fields:
        return columns.fields(self.api.device_show(
            gpgpu_context.admin(), self.uuid(parsed_args)))


class DeviceAccept(reach.Command, lister.Lister):
    """Take new devices of a host as clean without a cleaning.

    Only devices that are dirty for being new are accepted. All others, and
    those that are being cleaned, are refused.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('host', help='name of the nova-compute service')
        parser.add_argument(
            'address', nargs='+',
            help='PCI address of a device there, repeatable')
        parser.add_argument(
            '--reason', required=True, metavar='TEXT',
            help='why they are known to be clean, for the ledger')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        uuids = [device_name.uuid_of(self.api, [parsed_args.host, address])
                 for address in parsed_args.address]
        return columns.rows(self.api.device_accept(
            gpgpu_context.admin(), uuids, parsed_args.reason), _LIST)


class DeviceReplace(OneDevice):
    """Retire a GPU, and accept the other card in its place.

    The command shows the other card, or the retired GPU if its host has not
    reported another one yet.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Fields:
        shown = self.api.device_replace(
            gpgpu_context.admin(), self.uuid(parsed_args))
        if shown.state == device_rules.RETIRED:
            self.note(f'the next card that {shown.host} reports at '
                      f'{shown.address} takes the place of this one; until '
                      f'then the place is empty')
        return columns.fields(shown)


class DeviceRelease(OneDevice):
    """Have a device cleaned, and end what withdrew it."""

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Fields:
        context, uuid = gpgpu_context.admin(), self.uuid(parsed_args)
        before = self.api.device_show(context, uuid).holds
        shown = self.api.device_release(context, uuid)
        for text in before:
            if text not in shown.holds:
                self.note(f'removed: {text}')
        return columns.fields(shown)
