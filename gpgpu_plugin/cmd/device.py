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
"""``gpgpu-manage device`` and ``instance``: devices and their assignments."""

from __future__ import annotations

import argparse
import uuid

from cliff import lister
from cliff import show

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import device_name
from gpgpu_plugin.cmd import paging
from gpgpu_plugin.cmd import reach

_LIST = ('uuid', 'host', 'address', 'variant', 'vgpu_type', 'shown_state',
         'health', 'host_state', 'used_by', 'numa_node', 'slot', 'stable_id',
         'reason')


class DeviceList(reach.Command, lister.Lister):
    """List devices."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--host', help='only devices of this host')
        parser.add_argument('--variant', help='only devices of this variant')
        parser.add_argument('--state', help='only devices shown in this state')
        parser.add_argument('--used-by', metavar='INSTANCE',
                            help='only devices assigned to this instance')
        paging.add_arguments(parser, 'its UUID')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        api, context = self.api, gpgpu_context.admin()
        if parsed_args.variant:
            api.variant_show(context, parsed_args.variant)
        return columns.rows(
            api.device_list(
                context, host=parsed_args.host,
                variant=parsed_args.variant, state=parsed_args.state,
                used_by=instance_uuid(parsed_args.used_by)
                if parsed_args.used_by else None,
                limit=parsed_args.limit, marker=parsed_args.marker), _LIST)


class _OneDevice(reach.Command, show.ShowOne):
    """Base of a command about one device."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        device_name.add_argument(parser)
        return parser

    def uuid(self, parsed_args: argparse.Namespace) -> str:
        """Return the UUID of the device."""
        return device_name.uuid_of(self.api, parsed_args.device)


class DeviceShow(_OneDevice):
    """Show a device."""

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Fields:
        return columns.fields(self.api.device_show(
            gpgpu_context.admin(), self.uuid(parsed_args)))


class DeviceSet(_OneDevice):
    """Enable or disable a device; an assigned one stays assigned."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        choice = parser.add_mutually_exclusive_group(required=True)
        choice.add_argument('--enable', dest='enabled', action='store_true',
                            default=None,
                            help='offer the device to new instances')
        choice.add_argument('--disable', dest='enabled',
                            action='store_false',
                            help='do not offer it to new instances')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Fields:
        return columns.fields(self.api.device_set(
            gpgpu_context.admin(), self.uuid(parsed_args),
            enabled=parsed_args.enabled))


class DeviceRelease(_OneDevice):
    """Send a quarantined device to cleaning again."""

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Fields:
        return columns.fields(self.api.device_release(
            gpgpu_context.admin(), self.uuid(parsed_args),
            actor=reach.actor()))


class InstanceShow(reach.Command, lister.Lister):
    """List the devices assigned to an instance."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('instance', help='UUID of the instance')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        found = self.api.instance_assignments(
            gpgpu_context.admin(), instance_uuid(parsed_args.instance))
        if not found:
            self.note(f'instance {parsed_args.instance} has no device')
        return columns.rows(
            found, ('uuid', 'host', 'role', 'migration_uuid', 'variant',
                    'vgpu_type', 'address', 'state', 'device_uuid',
                    'stable_id'))


def instance_uuid(text: str) -> str:
    """Return a UUID as Nova writes it.

    :raises Invalid: it is not a UUID; a name would silently match nothing
    """
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise exception.Invalid(
            field='instance', value=text,
            expected='the UUID of a server') from None
