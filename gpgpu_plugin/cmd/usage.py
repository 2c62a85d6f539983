# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage usage list`` and ``summary``: who used GPUs for how long."""

from __future__ import annotations

import argparse

from cliff import lister

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import dates
from gpgpu_plugin.cmd import paging
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.cmd import server_name
from gpgpu_plugin.objects import usage as objects

_LIST = ('uuid', 'project_id', 'instance_uuid', 'flavor', 'host', 'address',
         'variant', 'vgpu_type', 'began_at', 'ended_at', 'seconds')
_LONG = (*_LIST[:2], 'user_id', *_LIST[2:6], 'device_uuid', 'serial',
         *_LIST[6:8], 'resource_class', *_LIST[8:])
_BY = (objects.UsageKey.PROJECT, objects.UsageKey.VARIANT,
       objects.UsageKey.VGPU_TYPE)
_HOUR = 3600


class _Usage(reach.Command, lister.Lister):
    """Base of a command about the usage within a period."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--project', metavar='ID',
                            help='only usage by this project')
        parser.add_argument('--user', metavar='ID',
                            help='only usage by this user')
        parser.add_argument('--host', help='only usage on this host, which '
                                           'may be deleted')
        parser.add_argument('--instance', metavar='SERVER',
                            help='only usage by this instance')
        parser.add_argument('--variant', help='only usage of this variant, '
                                              'which may be deleted')
        dates.add_period(parser)
        return parser


class UsageList(_Usage):
    """List which instance used which device, when, and for how long."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--long', action='store_true',
                            help='show all columns')
        paging.add_arguments(parser, 'its UUID')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        return columns.rows(self.api.usage_list(
            gpgpu_context.admin(), _query(self, parsed_args),
            limit=parsed_args.limit, marker=parsed_args.marker),
            _LONG if parsed_args.long else _LIST)


class UsageSummary(_Usage):
    """Sum usage by project, variant and vGPU type, or by other keys."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--by', type=_names, default=list(_BY), metavar='KEY,...',
            help=f'what to sum by, some of {", ".join(objects.UsageKey)} '
                 f'(default: {",".join(_BY)})')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        by = parsed_args.by
        found = self.api.usage_summary(
            gpgpu_context.admin(), _query(self, parsed_args), by)
        return ([columns.title(name) for name in (
                    *by, 'usages', 'seconds', 'hours')],
                [[columns.Cell(value) for value in (
                    *row.values, row.usages, row.seconds,
                    round(row.seconds / _HOUR, 2))] for row in found])


def _query(command: reach.Command, parsed_args: argparse.Namespace,
           ) -> objects.UsageQuery:
    return objects.UsageQuery(
        project_id=parsed_args.project, user_id=parsed_args.user,
        host=parsed_args.host, variant=parsed_args.variant,
        instance_uuid=server_name.optional(command, parsed_args.instance),
        since=parsed_args.since, until=parsed_args.until)


def _names(text: str) -> list[str]:
    """Return the keys of a sum, each once, for argparse.

    :raises ArgumentTypeError: one is unknown
    """
    names = list(dict.fromkeys(text.split(',')))
    for name in names:
        if name not in list(objects.UsageKey):
            raise argparse.ArgumentTypeError(
                f'{name!r} is none of {", ".join(objects.UsageKey)}')
    return names
