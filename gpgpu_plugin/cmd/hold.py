# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage hold``: why devices are not offered."""

from __future__ import annotations

import argparse

from cliff import lister

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import device
from gpgpu_plugin.cmd import paging
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import hold

_LIST = ('id', 'host', 'address', 'device', 'kind', 'since', 'actor',
         'reason')


class HoldList(reach.Command, lister.Lister):
    """List holds of devices and hosts, the oldest first."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--host', help='only holds of the host and of devices there')
        parser.add_argument('--kind', choices=list(hold.KINDS),
                            help='only holds of this kind')
        paging.add_arguments(parser, 'its ID')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        return columns.rows(self.api.hold_list(
            gpgpu_context.admin(), host=parsed_args.host,
            kind=parsed_args.kind, limit=parsed_args.limit,
            marker=parsed_args.marker), _LIST)


class HoldAdd(device.OneDevice):
    """Keep a device, and the vGPUs on it, from being offered.

    Instances keep what they have, but a GPU that an instance has cannot be
    retired.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--kind', required=True, choices=list(hold.BY_OPERATORS),
            help='quarantined: something is wrong, it is cleaned afterwards; '
                 'disabled: not for now; retired: it leaves the cloud for '
                 'good, and its history stays')
        parser.add_argument(
            '--reason', metavar='TEXT',
            help='why, for whoever finds the device so; a quarantine needs '
                 'one')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Fields:
        shown = self.api.hold_add(
            gpgpu_context.admin(), self.uuid(parsed_args), parsed_args.kind,
            parsed_args.reason)
        if (parsed_args.kind == hold.HoldKind.QUARANTINED
                and shown.state in device_rules.ASSIGNED_STATES):
            self.note(f'instance {shown.used_by} keeps the device; it is '
                      f'quarantined when its assignment ends')
        return columns.fields(shown)


class HoldRemove(device.OneDevice):
    """Remove holds of a device; it is cleaned if one withdrew it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--kind', required=True, action='append', dest='kinds',
            choices=list(hold.HoldKind),
            help='kind of a hold to remove, repeatable')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Fields:
        return columns.fields(self.api.hold_remove(
            gpgpu_context.admin(), self.uuid(parsed_args),
            parsed_args.kinds))
