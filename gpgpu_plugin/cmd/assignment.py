# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage assignment``: which instance has which device."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cliff import lister

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.cmd import names
from gpgpu_plugin.cmd import reach

_LIST = ('uuid', 'instance_uuid', 'host', 'address', 'variant', 'vgpu_type',
         'role', 'state', 'migration_uuid', 'since', 'used')
_LONG = (*_LIST, 'device_uuid', 'stable_id', 'reason')


class AssignmentList(reach.ConductorCommand, lister.Lister):
    """List assignments, and whether their instances use them."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--host', help='list only assignments on this host')
        parser.add_argument('--instance', metavar='SERVER',
                            help='list only assignments of this instance')
        parser.add_argument('--long', action='store_true',
                            help='show all columns, such as the reason for '
                                 'each value of "used"')
        listing.add_page_arguments(parser, 'its UUID')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        found = self.api.assignment_list(
            gpgpu_context.admin(), host=parsed_args.host,
            instance=names.optional_server_uuid(self, parsed_args.instance),
            limit=parsed_args.limit, marker=parsed_args.marker)
        return listing.rows(
            found, _LONG if parsed_args.long else _LIST)


class AssignmentEnd(reach.ConductorCommand, lister.Lister):
    """End assignments; their devices are cleaned and offered again."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'assignment', nargs='+',
            help='UUID of an assignment, repeatable; with --instance, the '
                 'name of the host')
        parser.add_argument('--instance', metavar='SERVER',
                            help='end all assignments of this instance on '
                                 'the host')
        parser.add_argument(
            '--force', action='store_true',
            help='end the assignments even if they are used, or if it is '
                 'unknown whether they are. Stop a running guest first: a '
                 'device that a process has open is quarantined')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        uuids = self._uuids(parsed_args)
        return listing.rows(self.api.assignment_end(
            gpgpu_context.admin(), uuids, force=parsed_args.force,
            actor=reach.actor()), _LIST)

    def _uuids(self, parsed_args: argparse.Namespace) -> Sequence[str]:
        """Return the UUIDs of the assignments to end.

        :raises UsageError: an instance is given with more than one host
        :raises NotFound: the instance has no assignment on the host
        """
        words: list[str] = parsed_args.assignment
        instance = parsed_args.instance
        if instance is None:
            return words
        if len(words) > 1:
            raise base.UsageError(
                'name one host, whose assignments of --instance end')
        found = self.api.instance_assignments(
            gpgpu_context.admin(), names.server_uuid_of(self, instance))
        uuids = [assignment.uuid for assignment in found
                 if assignment.host == words[0]]
        if not uuids:
            raise exception.NotFound(
                kind='assignment of instance',
                name=f'{instance} on {words[0]}')
        return uuids
