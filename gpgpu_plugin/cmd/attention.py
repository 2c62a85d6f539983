# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage status``: what needs somebody now, on one screen.

``cmd.status`` is another program, gpgpu-status.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterator

from cliff import lister

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.domain import attention
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.objects import inventory
from gpgpu_plugin.rpc import ping

_COLUMNS = ('severity', 'what', 'count', 'where', 'next_command')
_Found = Iterator[tuple[attention.Cause, str]]


class StatusCommand(reach.ConductorCommand, lister.Lister):
    """List what needs somebody now, each with the next command to run.

    Exit code: 0 nothing needs you; 1 something should be looked at; 2 capacity
    or service is lost, or the conductors could not be asked.
    """

    failure_code = 2
    _code = 0

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; return its exit code."""
        return super().run(parsed_args) or self._code

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        answers = ping.ping(self.rpc_conf, self.transport)
        found = list(_conductors(answers))
        # Calls that nobody takes would only time out.
        if not answers or any(not answer.unfit for answer in answers):
            for part in (self._hosts, self._devices, self._variants):
                found += part()
        lines = attention.lines(found)
        self._code = attention.exit_code(lines)
        if not self._code:
            self.note('nothing needs you')
        return listing.rows(lines, _COLUMNS)

    def _hosts(self) -> _Found:
        for host in self.api.host_list(gpgpu_context.admin()):
            for cause in attention.of_host(
                    host.host_state, draining=host.draining):
                yield cause, host.host

    def _devices(self) -> _Found:
        context = gpgpu_context.admin()
        kinds = collections.defaultdict(set)
        places = {}
        for held in self.api.hold_list(context):
            # Those of hosts are among the states of hosts.
            if held.device is not None:
                kinds[held.device].add(held.kind)
                places[held.device] = f'{held.host} {held.address}'
        for uuid, place in places.items():
            for cause in attention.of_holds(kinds[uuid]):
                yield cause, place
        for device in self.api.device_list(context, faulty=True):
            if device.kind == device_rules.DeviceKind.PCI:
                for cause in attention.of_device(
                        device.health, kinds.get(device.uuid, ()),
                        present=device.present):
                    yield cause, f'{device.host} {device.address}'

    def _variants(self) -> _Found:
        context = gpgpu_context.admin()
        for variant in self.api.variant_list(context):
            for cause in attention.of_variant(variant.status, variant.reason):
                yield cause, variant.name
        types = inventory.summed_capacity(
            self.api.vgpu_type_list(context, only_enabled=True))
        remaining = {info.variant for info in types if info.remaining_capacity}
        for name in sorted({info.variant for info in types
                            if info.max_capacity} - remaining):
            yield attention.Cause.VARIANT_EXHAUSTED, name


def _conductors(answers: tuple[ping.PingAnswer, ...]) -> _Found:
    cause = attention.of_conductors([bool(one.unfit) for one in answers])
    if not answers:
        yield cause, 'all'
    for answer in answers:
        if answer.unfit:
            yield cause, f'{answer.host} (PID {answer.pid})'
