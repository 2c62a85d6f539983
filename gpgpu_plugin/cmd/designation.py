# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-host``: designated cards, and instances that use them.

``designate`` and ``undesignate`` change the machine that they run on, and need
root but no service.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from cliff import command
from cliff import lister
from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import configuration
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.compute import designation_check
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.vfio import designation


class _Local(base.Command, command.Command):
    """Base of a command that changes this machine, as root."""

    def designator(self) -> designation.Designator:
        """Return the designator of this machine.

        :raises HostError: the user is not root
        """
        if os.geteuid() != 0:
            raise exception.HostError(
                path='/sys', reason='only root may bind devices; run the '
                                    'command as root, for example with sudo')
        return designation.Designator.as_root()

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'device', help='address or ID of any function of the card, as '
                           'in "gpgpu-host list"')
        return parser

    def say(self, card: Iterable[pci.PCIFunction], what: str) -> None:
        """Print one line about every function of a card."""
        for function in card:
            print(f'{function.address} ({function.vendor}:{function.device}) '
                  f'{what}', file=self.app.stdout)


class Designate(_Local):
    """Bind a card of this machine to VFIO drivers, now and at every boot."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.say(self.designator().designate(parsed_args.device),
                 'is designated for passthrough')


class Undesignate(configuration.ConfiguredCommand, _Local):
    """Return a clean card of this machine to the drivers of the host."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        designator = self.designator()
        self.say(designator.undesignate(
            parsed_args.device,
            functools.partial(designation_check.refusal, self._state_path())),
            'is no longer designated')

    def _state_path(self) -> str:
        """Return the folder with the books of this machine.

        :raises HostError: it is unknown
        """
        conf = self.configuration(base.NOVA_CONFIG_FILE)
        if self.manage.given_conf is None and not (
                conf.config_file or conf.config_dir):
            raise exception.HostError(
                path=base.NOVA_CONFIG_FILE,
                reason='it does not exist, so it is unknown whether a guest '
                       'has the card; name the configuration file of '
                       'nova-compute with --config-file')
        path: str = conf.gpgpu_compute.state_path
        return path


class Designated(base.Command, lister.Lister):
    """List the designated PCI functions of this machine."""

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        return listing.rows(
            designation.listing(sysfs_mod.Sysfs(), designation.Store()),
            ('id', 'address', 'vendor', 'device', 'kept_by', 'driver'))


# -- Instances that use the PCI functions of this machine.


def read_instances(command: base.Command,
                   ) -> tuple[Mapping[str, Sequence[str]], str | None]:
    """Return the instances by the id of a function.

    The remark on stderr says why there may be more. There is none on a
    machine on which nova-compute never ran with the plugin.

    :returns: instances, and why there may be more; None: there are none
    """
    try:
        conf = command.manage.given_conf or configuration.read(
            command.app.options, [base.NOVA_CONFIG_FILE])
        path: str = conf.gpgpu_compute.state_path
    except (cfg.Error, exception.HostError) as exc:
        return _doubted(command, {}, configuration.message(exc))
    if not os.path.lexists(path):
        return {}, f'{path} does not exist'
    users = designation_check.users(path)
    if users.doubt is not None:
        return _doubted(command, users.instances, users.doubt)
    return users.instances, None


def _doubted(command: base.Command, instances: Mapping[str, Sequence[str]],
             doubt: str) -> tuple[Mapping[str, Sequence[str]], str]:
    command.note(
        f'it is unknown which instances use other functions: {doubt}')
    return instances, doubt
