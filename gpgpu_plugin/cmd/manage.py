# SPDX-License-Identifier: Apache-2.0
"""gpgpu-manage, the operator's program.

Its commands are entry points of the namespace ``gpgpu_manage``, one module per
noun. Only the module of the command that runs is imported, with the modules
that it needs (cmd.configuration, cmd.reach). This module turns every error
into one line on stderr and an exit code.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import traceback
import typing
from collections.abc import Callable
from collections.abc import Sequence

from cliff import help as cliff_help

from gpgpu_plugin import version
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import commands
from gpgpu_plugin.cmd import errors

# For annotations alone: half of the commands read no configuration.
if typing.TYPE_CHECKING:
    import openstack.connection
    from oslo_config import cfg

    _Connect = Callable[..., openstack.connection.Connection]

NAMESPACE = 'gpgpu_manage'


class ManageApp(base.Application):
    """The cliff application.

    :param conf: configuration of a process that runs the conductor itself;
        None for a process of its own, which reads files
    :param connect: function that connects to a cloud; None for
        openstack.connect
    """

    NAME = 'gpgpu-manage'
    DEFAULT_VERBOSE_LEVEL = 0

    def __init__(self, conf: cfg.ConfigOpts | None = None,
                 connect: _Connect | None = None) -> None:
        self.given_conf = conf
        self.connect = connect
        super().__init__(
            description='Manage GPUs of an OpenStack Nova cloud',
            version=version.VERSION,
            command_manager=commands.CommandManager(NAMESPACE),
            stdout=sys.stdout, stderr=sys.stderr, deferred_help=True)

    def build_option_parser(
            self, description: str | None, version: str | None,
            argparse_kwargs: dict[str, object] | None = None,
            ) -> argparse.ArgumentParser:
        parser = super().build_option_parser(
            description, version, {'prog': self.NAME})
        parser.add_argument(
            '--config-file', action='append', metavar='FILE',
            help=f'configuration file, repeatable (default: '
                 f'{base.CONFIG_FILE} or, if it does not exist and the '
                 f'command calls gpgpu-conductor, {base.NOVA_CONFIG_FILE})')
        parser.add_argument(
            '--config-dir', action='append', metavar='DIR',
            help='directory of configuration files, repeatable')
        parser.add_argument(
            '--os-cloud', default=os.environ.get('OS_CLOUD'), metavar='NAME',
            help='cloud in clouds.yaml, for "flavor set", "flavor unset", '
                 '"doctor", "why-not", "what-if drain" and names of servers '
                 '(env: OS_CLOUD)')
        return parser

    def configure_logging(self) -> None:
        """Log warnings to stderr, except those of libraries.

        The error of the command says what they say of a broker, a URL or a
        driver.
        """
        super().configure_logging()
        for name in ('amqp', 'oslo_db', 'stevedore'):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def interact(self) -> None:
        """Refuse a call without a command; cliff would start a shell."""
        self.parser.error('a command is required; see gpgpu-manage --help')

    def run_subcommand(self, argv: list[str]) -> int:
        """Run a command and return the exit code.

        cliff's own method would log every error with the remote traceback
        that oslo.messaging appends to it.
        """
        try:
            factory, name, rest = self.command_manager.find_command(argv)
        except ValueError:
            self.stderr.write(f'{self.NAME}: {_unknown(self, argv)}\n')
            return 2
        # A dependency of the command is not installed.
        except ImportError as exc:
            return self._fail(exc, errors.message(exc), 1)
        command = None
        try:
            command = factory(self, self.options, cmd_name=name)
            parser = command.get_parser(f'{self.NAME} {name}')
            return int(command.run(parser.parse_args(rest)) or 0)
        except cliff_help.HelpExit:
            return 0
        except BrokenPipeError:
            raise
        # Whatever went wrong is one line for the operator and an exit code.
        except Exception as exc:  # noqa: BLE001
            text, code = (
                (command.explain(exc), command.failure_code)
                if isinstance(command, base.Command)
                else (errors.message(exc), 1))
            return self._fail(exc, text + errors.hint(exc), code)

    def _fail(self, exc: Exception, text: str, code: int) -> int:
        if self.options.debug:
            traceback.print_exception(exc, file=self.stderr)
        self.stderr.write(f'{self.NAME}: {text}\n')
        return code


def _unknown(manage: ManageApp, argv: list[str]) -> str:
    if argv[0].startswith('-'):
        return (f'option {argv[0]} is not one of gpgpu-manage itself; those '
                f'of a command come after its name, as in "gpgpu-manage host '
                f'list -f json"')
    words = itertools.takewhile(lambda word: not word.startswith('-'), argv)
    similar = manage.get_fuzzy_matches(argv[0])
    return (f'unknown command "{" ".join(words)}"; '
            + (f'did you mean one of: {", ".join(similar)}' if similar
               else 'see gpgpu-manage --help'))


def run(argv: Sequence[str], conf: cfg.ConfigOpts | None = None,
        connect: _Connect | None = None) -> int:
    """Run one command in this process.

    :param conf: see ManageApp
    :param connect: see ManageApp
    :returns: exit code: 0 success, 1 refused or failed, 2 wrong usage, or
        what the command itself defines
    """
    try:
        return int(ManageApp(conf, connect).run(list(argv)) or 0)
    except SystemExit as exc:
        return int(exc.code or 0)


def main() -> int:
    """Run the command of the command line."""
    return run(sys.argv[1:])


if __name__ == '__main__':
    sys.exit(main())
