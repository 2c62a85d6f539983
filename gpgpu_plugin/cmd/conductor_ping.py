# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage conductor ping``: the live conductors and their versions."""

from __future__ import annotations

import argparse
import datetime
import socket

from cliff import lister

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.rpc import ping


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(
            f'{text!r}: expected seconds, more than 0 and at most 3600')
    return seconds


class ConductorPing(reach.ConductorCommand, lister.Lister):
    """List the conductors that answer, and why one takes no calls.

    The exit code is 1 if none answers.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--wait', type=_seconds, default=2.0,
                            metavar='SECONDS',
                            help='seconds to wait for answers (default: 2)')
        parser.add_argument('--this-host', action='store_true',
                            help='list only the conductors of this machine '
                                 'or container, as a health check')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        answers = ping.ping(self.rpc_conf, self.transport,
                            wait=parsed_args.wait)
        if parsed_args.this_host:
            answers = tuple(answer for answer in answers
                            if answer.host == socket.gethostname())
        if not answers:
            raise exception.ConductorUnavailable(
                method='ping', timeout=parsed_args.wait)
        if parsed_args.this_host and all(
                answer.unfit for answer in answers):
            raise exception.HostNotReady(
                path=answers[0].host, reason=answers[0].unfit)
        return (('Host', 'PID', 'Version', 'RPC Version', 'Started At',
                 'Takes No Calls'),
                [(answer.host, answer.pid, answer.version, answer.rpc_version,
                  datetime.datetime.fromtimestamp(
                      answer.started_at, datetime.UTC).isoformat(
                          timespec='seconds'), answer.unfit or '-')
                 for answer in answers])
