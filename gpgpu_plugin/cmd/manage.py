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
noun; only the module of the command that is run is imported, with what it
needs (cmd.configuration, cmd.reach). This module makes of every error one
line on stderr and an exit code.
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

from cliff import app
from cliff import help as cliff_help

from gpgpu_plugin import version
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import commands
from gpgpu_plugin.cmd import errors

# For annotations alone: half of the commands read no configuration.
if typing.TYPE_CHECKING:
    from oslo_config import cfg

NAMESPACE = 'gpgpu_manage'


class GpgpuManage(app.App):
    """The cliff application.

    :param conf: configuration of a process that serves the conductor
        itself; None for a process of its own, which reads files
    :param connect: how to reach a cloud; None for openstack.connect
    :ivar given_conf: conf
    :ivar connect: connect
    """

    NAME = 'gpgpu-manage'
    DEFAULT_VERBOSE_LEVEL = 0

    def __init__(self, conf: cfg.ConfigOpts | None = None,
                 connect: Callable[..., typing.Any] | None = None,
                 ) -> None:
        self.given_conf = conf
        self.connect = connect
        super().__init__(
            description='Manage GPUs of an OpenStack Nova cloud',
            version=version.VERSION,
            command_manager=commands.CommandManager(NAMESPACE),
            stdout=sys.stdout, stderr=sys.stderr, deferred_help=True)

    def build_option_parser(
            self, description: str | None, version: str | None,
            argparse_kwargs: dict[str, typing.Any] | None = None,
            ) -> argparse.ArgumentParser:
        parser = super().build_option_parser(
            description, version, {'prog': self.NAME})
        parser.add_argument(
            '--config-file', action='append', metavar='FILE',
            help=f'configuration file, repeatable (default: '
                 f'{base.CONFIG_FILE} or, for the transport alone, '
                 f'{base.NOVA_CONFIG_FILE})')
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
        if self.given_conf is None:
            logging.getLogger('amqp').setLevel(logging.ERROR)

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
        # A command of another package, or one that is not fully installed.
        except ImportError as exc:
            return self._fail(exc, errors.message(exc))
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
            return self._fail(exc, (
                command.explain(exc) if isinstance(command, base.Command)
                else errors.message(exc)))

    def _fail(self, exc: Exception, text: str) -> int:
        if self.options.debug:
            traceback.print_exception(exc, file=self.stderr)
        self.stderr.write(f'{self.NAME}: {text}\n')
        return 1


def _unknown(manage: GpgpuManage, argv: list[str], exc: ValueError) -> str:
    similar = manage.get_fuzzy_matches(argv[0])
    return f'{exc}; is it one of: {", ".join(similar)}' if similar else (
        str(exc))


def run(argv: Sequence[str], conf: cfg.ConfigOpts | None = None,
        connect: Callable[..., typing.Any] | None = None) -> int:
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
