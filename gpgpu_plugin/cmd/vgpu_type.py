# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage vgpu-type``: the vGPU types of GPU groups.

``passthrough`` is one of them: the whole GPU.
"""

from __future__ import annotations

import argparse

from cliff import lister

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.cmd import variant as variant_cmd
from gpgpu_plugin.objects import inventory

_COLUMNS = ('host', 'variant', 'vgpu_type', 'enabled', 'max_vgpu_per_pgpu',
            *inventory.SUMMED, 'host_state')
_OF_CLOUD = ('variant', 'vgpu_type', 'hosts', *inventory.SUMMED)
_DETAILS = ('host', 'variant', 'vgpu_type', 'resource_class', 'enabled',
            'video_ram', 'max_heads', 'max_resolution_x',
            'max_resolution_y', 'max_vgpu_per_pgpu', *inventory.SUMMED,
            'host_state')


class VGPUTypeList(reach.ConductorCommand, lister.Lister):
    """List the vGPU types of groups with their capacity."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--host', help='only types on this host')
        parser.add_argument('--variant', help='only types of this variant')
        parser.add_argument('--type', metavar='NAME',
                            help='only this type')
        parser.add_argument('--enabled', action='store_true',
                            help='only types that are enabled')
        parser.add_argument('--cloud', action='store_true',
                            help='add up all hosts, in a row for each type')
        parser.add_argument('--long', action='store_true',
                            help='show all columns')
        listing.add_page_arguments(parser, 'HOST:VARIANT:TYPE')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        if parsed_args.cloud and (parsed_args.limit or parsed_args.marker):
            raise exception.Invalid(
                field='--limit and --marker',
                value=parsed_args.limit or parsed_args.marker,
                expected='none with --cloud, which adds up all hosts')
        types = self.api.vgpu_type_list(
            gpgpu_context.admin(), host=parsed_args.host,
            variant=parsed_args.variant, vgpu_type=parsed_args.type,
            only_enabled=parsed_args.enabled,
            limit=parsed_args.limit, marker=parsed_args.marker)
        if parsed_args.cloud:
            return listing.rows(
                inventory.summed_capacity(types), _OF_CLOUD)
        return listing.rows(
            types, _DETAILS if parsed_args.long else _COLUMNS)


class _Set(reach.ConductorCommand, lister.Lister):
    """Base of a command that enables or disables a type."""

    enabled: bool

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'host', nargs='?', help='name of the nova-compute service '
                                    '(default: all hosts, also later ones)')
        parser.add_argument('variant', help='name of the variant')
        parser.add_argument('vgpu_type', metavar='type',
                            help='name of the type, as in "vgpu-type list"')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        types = self.api.vgpu_type_set(
            gpgpu_context.admin(), parsed_args.variant,
            parsed_args.vgpu_type, parsed_args.host, enabled=self.enabled)
        variant_cmd.note_pending(self, self.api.variant_show(
            gpgpu_context.admin(), parsed_args.variant))
        return listing.rows(types, _COLUMNS)


class VGPUTypeEnable(_Set):
    """Enable a vGPU type on one host, or on all present and later hosts."""

    enabled = True


class VGPUTypeDisable(_Set):
    """Disable a vGPU type; assigned vGPUs stay assigned."""

    enabled = False
