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
"""``gpgpu-manage host designate`` and its kin: cards of this machine.

They need root and neither a conductor nor a broker.
"""

from __future__ import annotations

import argparse
import os
import typing
from collections.abc import Iterable

from cliff import command
from cliff import lister

from gpgpu_plugin import exception
from gpgpu_plugin import privsep
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.host.vfio import designation


class _Local(base.Command, command.Command):
    """A command about the machine that it runs on, as root."""

    def designator(self) -> designation.Designator:
        """Of this machine.

        :raises HostError: somebody else than root asks
        """
        if os.geteuid() != 0:
            raise exception.HostError(
                path='/sys', reason='only root may bind devices')
        privsep.be_root()
        sysfs = sysfs_mod.Sysfs()
        return designation.Designator(
            sysfs, binding.Binder.privileged(sysfs),
            designation.Store.privileged())

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'device', help='address or id of a function of the card, as '
                           '"gpgpu-manage pci list" shows them')
        return parser

    def say(self, card: Iterable[pci.PCIFunction], what: str) -> None:
        """Name the functions that were changed."""
        for each in card:
            print(f'{each.address} ({each.vendor}:{each.device}) {what}',
                  file=self.app.stdout)


class HostDesignate(_Local):
    """Bind a card of this machine to vfio-pci, now and after every boot."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.say(self.designator().designate(parsed_args.device),
                 'is designated for passthrough')


class HostUndesignate(_Local):
    """Give a card of this machine back to the drivers of the host."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.say(self.designator().undesignate(parsed_args.device),
                 "is the host's again")


class HostShowDesignated(base.Command, lister.Lister):
    """List what is designated on this machine."""

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        return columns.rows(
            designation.listing(sysfs_mod.Sysfs(), designation.Store()),
            ('id', 'address', 'vendor', 'device', 'kept_by', 'driver'))
