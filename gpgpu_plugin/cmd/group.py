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
"""``gpgpu-manage group``: GPU groups, the GPUs of one variant on one host."""

from __future__ import annotations

import argparse

from cliff import lister
from cliff import show

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import paging
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.cmd import variant as variant_cmd
from gpgpu_plugin.domain.allocation import request

_POLICIES = ('host', 'variant', 'allocation_policy', 'policy_source',
             'cleaning_policy')


def _add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('host', help='name of the nova-compute service')
    parser.add_argument('variant', help='name of the variant')


class GroupList(reach.Command, lister.Lister):
    """List groups with their capacity."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--host', help='only groups of this host')
        parser.add_argument('--variant', help='only groups of this variant')
        paging.add_arguments(parser, 'HOST:VARIANT')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        api, context = self.api, gpgpu_context.admin()
        # An unknown name must not look like a group without GPUs.
        if parsed_args.host:
            api.host_show(context, parsed_args.host)
        if parsed_args.variant:
            api.variant_show(context, parsed_args.variant)
        return columns.rows(
            api.group_list(
                context, host=parsed_args.host,
                variant=parsed_args.variant, limit=parsed_args.limit,
                marker=parsed_args.marker),
            ('host', 'variant', 'resource_class', 'allocation_policy',
             'cleaning_policy', 'total', 'reserved', 'remaining', 'assigned',
             'states', 'host_state'))


class GroupShow(reach.Command, show.ShowOne):
    """Show a group."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_key(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Fields:
        api, context = self.api, gpgpu_context.admin()
        groups = {group.variant: group for group in api.group_list(
            context, host=parsed_args.host)}
        if parsed_args.variant not in groups:
            api.host_show(context, parsed_args.host)
            raise exception.NotFound(
                kind='group',
                name=f'{parsed_args.variant} on {parsed_args.host} (known '
                     f'there: {", ".join(groups) or "none"})')
        return columns.fields(groups[parsed_args.variant])


class GroupSet(reach.Command, lister.Lister):
    """Set the allocation policy of a group, or of all groups of a variant.

    A group has the policy of its variant until it gets one of its own.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'host', nargs='?',
            help='name of the nova-compute service; not with --all-hosts')
        parser.add_argument('variant', help='name of the variant')
        parser.add_argument(
            '--all-hosts', action='store_true',
            help='set the policy of the variant, which also applies to hosts '
                 'that report later, and unset that of each of its groups')
        policy = parser.add_mutually_exclusive_group(required=True)
        policy.add_argument(
            '--allocation-policy',
            choices=[str(policy) for policy in request.AllocationPolicy],
            help='fill GPUs and NUMA nodes in use first (depth_first) or '
                 'spread over all (breadth_first), where topology does not '
                 'decide')
        policy.add_argument(
            '--unset', choices=['allocation-policy'], metavar='FIELD',
            help='return to the value of the variant: allocation-policy')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        host = parsed_args.host
        if parsed_args.all_hosts == (host is not None):
            raise exception.Invalid(
                field='HOST', value=host or 'none',
                expected='either the name of a host before the variant, or '
                         '--all-hosts')
        api, context = self.api, gpgpu_context.admin()
        groups = api.group_set(context, host, parsed_args.variant,
                               parsed_args.allocation_policy)
        variant_cmd.note_pending(
            self, api.variant_show(context, parsed_args.variant))
        return columns.rows(groups, _POLICIES)
