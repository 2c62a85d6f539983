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
"""gpgpu-manage: the operator's program.

Its commands are entry points of the namespace ``gpgpu_manage``, one module a
noun. This module finds the configuration and the conductor for them, and
makes of every error one line on stderr and an exit code.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
import typing
from collections.abc import Callable
from collections.abc import Sequence

import openstack
from cliff import app
from cliff import commandmanager
from cliff import help as cliff_help
from oslo_config import cfg

from gpgpu_plugin import version
from gpgpu_plugin.cmd import errors
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api as db_api
from gpgpu_plugin.rpc import conductor_api
from gpgpu_plugin.rpc import transport as rpc_transport

NAMESPACE = 'gpgpu_manage'
CONFIG_FILE = '/etc/gpgpu/gpgpu.conf'
NOVA_CONFIG_FILE = '/etc/nova/nova.conf'


class GpgpuManage(app.App):
    """The cliff application.

    :param conf: configuration of a process that serves the conductor
        itself; None for a process of its own, which reads files
    :param connect: how to reach a cloud, as openstack.connect
    """

    NAME = 'gpgpu-manage'
    DEFAULT_VERBOSE_LEVEL = 0

    def __init__(self, conf: cfg.ConfigOpts | None = None,
                 connect: Callable[..., typing.Any] = openstack.connect,
                 ) -> None:
        self._given = conf
        self._read: dict[tuple[str, ...], cfg.ConfigOpts] = {}
        self._transport: typing.Any = None
        self.connect = connect
        super().__init__(
            description='Manage GPUs of an OpenStack Nova cloud',
            version=version.VERSION,
            command_manager=commandmanager.CommandManager(NAMESPACE),
            stdout=sys.stdout, stderr=sys.stderr, deferred_help=True)

    def build_option_parser(
            self, description: str | None, version: str | None,
            argparse_kwargs: dict[str, typing.Any] | None = None,
            ) -> argparse.ArgumentParser:
        parser = super().build_option_parser(
            description, version, {'prog': self.NAME})
        parser.add_argument(
            '--config-file', action='append', metavar='FILE',
            help=f'configuration file, repeatable (default: {CONFIG_FILE} '
                 f'or, for the transport alone, {NOVA_CONFIG_FILE})')
        parser.add_argument(
            '--config-dir', action='append', metavar='DIR',
            help='folder of configuration files, repeatable')
        parser.add_argument(
            '--os-cloud', default=os.environ.get('OS_CLOUD'), metavar='NAME',
            help='cloud of clouds.yaml, for "flavor set" (env: OS_CLOUD)')
        return parser

    def configure_logging(self) -> None:
        """Warnings go to stderr, but for those about a broker's channels."""
        super().configure_logging()
        if self._given is None:
            logging.getLogger('amqp').setLevel(logging.ERROR)

    @property
    def database_conf(self) -> cfg.ConfigOpts:
        """The configuration that names the database.

        Never Nova's file, whose ``[database]`` is Nova's own.
        """
        return self._given or self._configuration(CONFIG_FILE)

    @property
    def rpc_conf(self) -> cfg.ConfigOpts:
        """The configuration that names the transport."""
        return self._given or self._configuration(
            CONFIG_FILE, NOVA_CONFIG_FILE)

    @property
    def transport(self) -> typing.Any:
        """The transport to the conductor.

        :raises ConfigInvalid: none can be reached by it
        """
        if self._transport is None:
            self._transport = (
                rpc_transport.get_transport(self._given)
                if self._given is not None
                else reach.transport(self.rpc_conf)
            )
        return self._transport

    @property
    def api(self) -> conductor_api.ConductorAPI:
        """The conductor. :raises ConfigInvalid: see transport"""
        return conductor_api.ConductorAPI(self.rpc_conf, self.transport)

    def _configuration(self, *defaults: str) -> cfg.ConfigOpts:
        if defaults not in self._read:
            self._read[defaults] = _read_conf(self.options, defaults)
        return self._read[defaults]

    def interact(self) -> None:
        """Refuse a call without a command: there is no shell here."""
        self.parser.error('a command is required; see gpgpu-manage --help')

    def run_subcommand(self, argv: list[str]) -> int:
        """Run a command.

        cliff would log any error itself, with the remote traceback that
        oslo.messaging appends to it, hence not its own method.
        """
        try:
            factory, name, rest = self.command_manager.find_command(argv)
        except ValueError as exc:
            self.stderr.write(f'{self.NAME}: {_unknown(self, argv, exc)}\n')
            return 2
        command = factory(self, self.options, cmd_name=name)
        parsed = command.get_parser(f'{self.NAME} {name}').parse_args(rest)
        try:
            return int(command.run(parsed) or 0)
        except cliff_help.HelpExit:
            return 0
        except BrokenPipeError:
            raise
        # The border to a person: whatever it is, it is said, and the exit
        # code tells.
        except Exception as exc:  # noqa: BLE001
            if self.options.debug:
                traceback.print_exc(file=self.stderr)
            self.stderr.write(f'{self.NAME}: {errors.message(exc)}\n')
            return 1


def _unknown(manage: GpgpuManage, argv: list[str], exc: ValueError) -> str:
    similar = manage.get_fuzzy_matches(argv[0])
    return f'{exc}; is it one of: {", ".join(similar)}' if similar else (
        str(exc))


def _read_conf(options: argparse.Namespace,
               defaults: Sequence[str]) -> cfg.ConfigOpts:
    """Read the files that are named, else the first default there is."""
    conf = cfg.ConfigOpts()
    conf_gpgpu.register_opts(conf)
    db_api.register_opts(conf)
    files = options.config_file or [
        each for each in defaults if os.path.exists(each)][:1]
    arguments = [f'--config-file={each}' for each in files]
    arguments += [f'--config-dir={each}' for each in options.config_dir or ()]
    conf(arguments, project='gpgpu', default_config_files=[],
         default_config_dirs=[], version=version.VERSION)
    return conf


def run(argv: Sequence[str], conf: cfg.ConfigOpts | None = None,
        connect: Callable[..., typing.Any] = openstack.connect) -> int:
    """Run one command.

    :param conf: see GpgpuManage
    :param connect: see GpgpuManage
    :returns: exit code: 0 done, 1 refused or failed, 2 wrong usage
    """
    try:
        return int(GpgpuManage(conf, connect).run(list(argv)) or 0)
    except SystemExit as exc:
        return int(exc.code or 0)


def main() -> int:
    """The program."""
    return run(sys.argv[1:])


if __name__ == '__main__':
    sys.exit(main())
