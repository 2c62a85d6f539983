# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage host``: compute hosts that report devices."""

from __future__ import annotations

import argparse
from collections.abc import Collection

from cliff import command
from cliff import lister
from cliff import show

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.gpu_map import text
from gpgpu_plugin.objects import admin

_LEFT = ('instance_uuid', 'role', 'variant', 'vgpu_type', 'address', 'state',
         'since', 'used', 'uuid')


class HostList(reach.ConductorCommand, lister.Lister):
    """List the hosts, with the number of devices by state."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        listing.add_page_arguments(parser, 'the name of the host')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        hosts = self.api.host_list(
            gpgpu_context.admin(), limit=parsed_args.limit,
            marker=parsed_args.marker)
        if any(host.host_state == host_rules.HostState.RESTORED
               for host in hosts):
            minutes = host_rules.minutes_to_report(
                self.rpc_conf.gpgpu.digest_interval)
            self.note(f'the database was restored: such a host reports what '
                      f'it has within {minutes} min of its last call (Heard '
                      f'At); a restart of nova-compute there hastens it')
        return listing.rows(
            hosts,
            ('host', 'node', 'node_uuid', 'devices', 'cleaned', 'host_state',
             'draining', 'reported_at', 'heard_at', 'version'))


class HostShow(reach.ConductorCommand, show.ShowOne):
    """Show a host."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('host', help='name of the nova-compute service')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        return listing.fields(self.api.host_show(
            gpgpu_context.admin(), parsed_args.host))


class HostDrain(reach.ConductorCommand, lister.Lister):
    """Withdraw a host's devices and list the assignments that are left."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('host', help='name of the nova-compute service')
        parser.add_argument('--reason', metavar='TEXT',
                            help='why, for whoever finds the host so')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        host = parsed_args.host
        self.api.host_drain(gpgpu_context.admin(), host, draining=True,
                            reason=parsed_args.reason)
        left = self.api.assignment_list(gpgpu_context.admin(), host=host)
        # Afterwards: devices of assignments that just ended are unclean.
        shown = self.api.host_show(gpgpu_context.admin(), host)
        self.note(_progress(shown, left))
        return listing.rows(left, _LEFT)


def _progress(host: admin.HostInfo,
              left: Collection[admin.AssignmentInfo]) -> str:
    """Return how far a host is from being empty, as one sentence."""
    unclean = sum(host.devices.get(state, 0)
                  for state in device_rules.UNCLEAN_STATES)
    instances = len({assignment.instance_uuid for assignment in left})
    waits = ([f'{text.counted(len(left), "assignment")} of '
              f'{text.counted(instances, "instance")}'] if left else [])
    if unclean:
        waits.append(f'{text.counted(unclean, "device")} not clean yet')
    quarantined = host.devices.get(device_rules.QUARANTINED, 0)
    return f'host {host.host} is draining; ' + (
        f'left: {", ".join(waits)}' if waits
        else 'no instance has a device of it, and none waits for cleaning') + (
        f'; {text.counted(quarantined, "device")} quarantined, see '
        f'"gpgpu-manage device list --host {host.host} --state quarantined"'
        if quarantined else '')


class HostUndrain(reach.ConductorCommand, show.ShowOne):
    """Offer the devices of a host again."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('host', help='name of the nova-compute service')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        return listing.fields(self.api.host_drain(
            gpgpu_context.admin(), parsed_args.host, draining=False))


class HostTakeover(reach.ConductorCommand, command.Command):
    """Let nova-compute on another machine speak for a host."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('host', help='name of the nova-compute service')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.api.host_takeover(gpgpu_context.admin(), parsed_args.host)


class HostDelete(reach.ConductorCommand, command.Command):
    """Delete a host if no device of it is assigned, held or not clean."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('host', help='name of the nova-compute service')
        parser.add_argument(
            '--force', action='store_true',
            help='delete the host even if GPUs of it were used and are not '
                 'clean, or devices are quarantined, disabled or retired, and '
                 'whether or not its nova-compute is running; if it is, it '
                 'reports the devices again. What was wrong with them is '
                 'forgotten')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.api.host_delete(
            gpgpu_context.admin(), parsed_args.host, force=parsed_args.force)
        self.note(f'the keys of {parsed_args.host} stay valid, so that it can '
                  f'report again; if it is gone, run "gpgpu-manage key revoke '
                  f'host {parsed_args.host}"')
