# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage group``: the GPUs of one variant on one host."""

from __future__ import annotations

import argparse
import pathlib

from cliff import lister
from cliff import show

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import admin

_POLICIES = ('host', 'variant', 'allocation_policy', 'policy_source',
             'cleaning_policy')
_LINKS = ('host', 'variant', 'links_source', 'fabric', 'free_partition_counts',
          'links_problem')
_UNSET_LINKS = 'link-partitions'


def _add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('host', help='name of the nova-compute service')
    parser.add_argument('variant', help='name of the variant')


class GroupList(reach.ConductorCommand, lister.Lister):
    """List groups with their capacity."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--host', help='only groups of this host')
        parser.add_argument('--variant', help='only groups of this variant')
        listing.add_page_arguments(parser, 'HOST:VARIANT')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        api, context = self.api, gpgpu_context.admin()
        # An unknown name must not look like a group without GPUs.
        if parsed_args.host:
            api.host_show(context, parsed_args.host)
        if parsed_args.variant:
            api.variant_show(context, parsed_args.variant)
        return listing.rows(
            api.group_list(
                context, host=parsed_args.host,
                variant=parsed_args.variant, limit=parsed_args.limit,
                marker=parsed_args.marker),
            ('host', 'variant', 'resource_class', 'allocation_policy',
             'cleaning_policy', 'total', 'reserved', 'remaining', 'assigned',
             'states', 'free_partition_counts', 'host_state'))


class GroupShow(reach.ConductorCommand, show.ShowOne):
    """Show a group."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_key(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        return listing.fields(_find(self, parsed_args))


def _find(command: reach.ConductorCommand,
          parsed_args: argparse.Namespace) -> admin.GroupInfo:
    """Return the group that the arguments name.

    :raises NotFound: there is none
    """
    api, context = command.api, gpgpu_context.admin()
    groups = {group.variant: group for group in api.group_list(
        context, host=parsed_args.host)}
    if parsed_args.variant not in groups:
        api.host_show(context, parsed_args.host)
        raise exception.NotFound(
            kind='group',
            name=f'{parsed_args.variant} on {parsed_args.host} (known '
                 f'there: {", ".join(groups) or "none"})')
    return groups[parsed_args.variant]


class GroupLinks(reach.ConductorCommand, lister.Lister):
    """List the link partitions of a group, and which of them are free.

    State is "taken" if one instance has exactly these GPUs, "overlapped" if
    instances have some of them, each as another partition, "broken" if an
    instance has some of them but not as a partition, and "unavailable" if no
    instance has any, but not all can be claimed.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_key(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        group = _find(self, parsed_args)
        if group.links_source is None:
            self.note(f'nothing is known of the links of {group.variant} on '
                      f'{group.host}; "gpgpu-manage group set '
                      f'--link-partitions" states them')
        if group.links_problem:
            self.note(f'not all link partitions of {group.variant} on '
                      f'{group.host} are known: {group.links_problem}')
        return ('Partition', 'GPUs', 'Free', 'State', 'Addresses'), [
            (name, len(addresses.split()),
             listing.Cell(name in group.free_partitions),
             group.partition_states[name], addresses)
            for name, addresses in group.link_partitions.items()]


class GroupSet(reach.ConductorCommand, lister.Lister):
    """Set the allocation policy or the link partitions of a group.

    A group has those of its variant ("variant set") until it gets some of its
    own.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_key(parser)
        policy = parser.add_mutually_exclusive_group(required=True)
        policy.add_argument(
            '--allocation-policy',
            choices=[str(policy) for policy in request.AllocationPolicy],
            help='fill GPUs and NUMA nodes in use first (depth_first) or '
                 'spread over all (breadth_first), where topology does not '
                 'decide')
        policy.add_argument(
            '--link-partitions', type=pathlib.Path, metavar='FILE',
            help=HELP)
        policy.add_argument(
            '--unset', choices=['allocation-policy', _UNSET_LINKS],
            metavar='FIELD',
            help='return to the value of the variant: allocation-policy or '
                 'link-partitions')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        api, context = self.api, gpgpu_context.admin()
        path, host = parsed_args.link_partitions, parsed_args.host
        if path is not None or parsed_args.unset == _UNSET_LINKS:
            return listing.rows(api.group_links_set(
                context, host, parsed_args.variant,
                None if path is None else read_link_file(path)), _LINKS)
        return listing.rows(api.group_set(
            context, host, parsed_args.variant,
            parsed_args.allocation_policy), _POLICIES)


# -- Files in which operators state link partitions (domain.fabric).


HELP = ('file of JSON with the sets of GPUs that an instance can get '
        'together: "named_by" (order, address or slot), "partitions" or '
        'NVIDIA\'s "partitionInfo", and if these name module IDs, "modules"')


def read_link_file(path: pathlib.Path) -> str:
    """Return the table in a file, in the form in which it is kept.

    :raises NotFound: the file does not exist
    :raises Invalid: the file cannot be read, or has no table
    """
    try:
        text = path.read_text(encoding='utf-8')
    except FileNotFoundError:
        raise exception.NotFound(kind='file', name=path) from None
    except (OSError, UnicodeDecodeError) as exc:
        raise exception.Invalid(
            field='link partitions', value=str(path),
            expected=f'a file of JSON: {exc}') from None
    return fabric.normalize_link_table(text)
