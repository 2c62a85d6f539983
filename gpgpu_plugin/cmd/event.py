# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage event``: what happened, and why."""

from __future__ import annotations

import argparse
import difflib

from cliff import lister

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.cmd import names
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.domain import event as rules
from gpgpu_plugin.objects import history

_LIST = ('id', 'at', 'kind', 'host', 'device_uuid', 'instance_uuid', 'actor',
         'reason', 'count', 'detail')
_LONG = ('assignment_uuid', 'project_id', 'request_id')

_DEFAULT = 100
"""Rows of ``event list``; the history has millions."""


class EventList(reach.ConductorCommand, lister.Lister):
    """List what happened to hosts, devices and assignments, newest first."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--host', help='only events of this host')
        parser.add_argument(
            '--device', nargs='+', metavar='DEVICE',
            help='only events of this device: its UUID, also if it was '
                 'deleted, or its host and PCI address; "device cleanings" '
                 'has the evidence of its cleanings')
        parser.add_argument(
            '--instance', metavar='SERVER',
            help='only events of this instance: UUID or name of the server, '
                 'or the UUID if it was deleted')
        parser.add_argument('--project', metavar='ID',
                            help='only events of instances of this project')
        parser.add_argument(
            '--kind', type=_kind, metavar='KIND',
            help=f'only events of this kind: {", ".join(rules.KINDS)}')
        parser.add_argument(
            '--request', metavar='ID',
            help='only events of this user request to Nova (req-...), whose '
                 'ID "openstack server event list" shows')
        listing.add_period(parser)
        parser.add_argument('--long', action='store_true',
                            help='show all columns')
        listing.add_page_arguments(parser, 'its ID', _DEFAULT)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        wanted = _wanted(self, parsed_args)
        found = self.api.event_list(
            gpgpu_context.admin(), wanted,
            limit=parsed_args.limit, marker=parsed_args.marker)
        if wanted.instance and not found:
            self.note(
                f'no such event of instance {wanted.instance}. "gpgpu-manage '
                f'why-not --server {wanted.instance}" says where it would '
                f'fit; requests for which Placement had no candidate are '
                f'recorded with [gpgpu_conductor] nova_notifications_topic '
                f'alone, see "gpgpu-status upgrade check"')
        if len(found) == parsed_args.limit:
            self.note(f'there may be older events: list them with --marker '
                      f'{found[-1].marker}, or more at once with --limit')
        return listing.rows(
            found, (*_LIST, *_LONG) if parsed_args.long else _LIST)


def _kind(text: str) -> str:
    """Return a kind of events, for argparse.

    :raises ArgumentTypeError: there is no such kind
    """
    if text not in rules.KINDS:
        similar = difflib.get_close_matches(text, rules.KINDS) or rules.KINDS
        raise argparse.ArgumentTypeError(
            f'{text!r} is no kind of events, such as {", ".join(similar)}')
    return text


def _wanted(command: reach.ConductorCommand, parsed_args: argparse.Namespace,
            ) -> history.EventFilter:
    return history.EventFilter(
        host=parsed_args.host,
        device=names.device_uuid_of(command.api, parsed_args.device)
        if parsed_args.device else None,
        instance=names.optional_server_uuid(command, parsed_args.instance),
        project=parsed_args.project, kind=parsed_args.kind,
        request=parsed_args.request, since=parsed_args.since,
        until=parsed_args.until)
