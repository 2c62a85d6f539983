# SPDX-License-Identifier: Apache-2.0
"""gpgpu-manage, the operator's program, and gpgpu-host, that of a machine.

Their commands are in cmd.commands, one module per noun. Only the module of the
command that runs is imported, with the modules that it needs
(cmd.configuration, cmd.reach). This module turns every error into one line on
stderr and an exit code.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import logging
import os
import sys
import traceback
import typing
from collections.abc import Callable
from collections.abc import Sequence

from autopage import argparse as autopage
from cliff import help as cliff_help

from gpgpu_plugin import version as version_mod
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import commands

# For annotations alone: half of the commands read no configuration.
if typing.TYPE_CHECKING:
    import openstack.connection
    from oslo_config import cfg

    _Connect = Callable[..., openstack.connection.Connection]


class Help(cliff_help.HelpCommand):
    """Print the help of a command, or the list of all commands."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        if parsed_args.cmd:
            return super().take_action(parsed_args)
        typing.cast(ManageApp, self.app).print_help()
        return 0


class ManageApp(base.Application):
    """The cliff application of gpgpu-manage.

    :cvar DESCRIPTION: of the program, for its help
    :param conf: configuration of a process that runs the conductor itself;
        None for a process of its own, which reads files
    :param connect: function that connects to a cloud; None for
        openstack.connect
    """

    NAME = 'gpgpu-manage'
    DESCRIPTION = 'Manage GPUs of an OpenStack Nova cloud'
    DEFAULT_VERBOSE_LEVEL = 0

    def __init__(self, conf: cfg.ConfigOpts | None = None,
                 connect: _Connect | None = None) -> None:
        self.given_conf = conf
        self.connect = connect
        super().__init__(
            description=self.DESCRIPTION, version=version_mod.VERSION,
            command_manager=commands.CommandManager(self.NAME),
            stdout=sys.stdout, stderr=sys.stderr, deferred_help=True)
        self.command_manager.commands.pop('help')
        self.command_manager.add_command('help', Help)

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
        self.add_options(parser)
        return parser

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options that gpgpu-host does not have."""
        parser.add_argument(
            '--os-cloud', default=os.environ.get('OS_CLOUD'), metavar='NAME',
            help='cloud in clouds.yaml, for "flavor set", "flavor unset", '
                 '"doctor", "why-not", "what-if drain" and names of servers '
                 '(env: OS_CLOUD)')

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
        self.parser.error(f'a command is required; see {self.NAME} --help')

    def print_help_if_requested(self) -> None:
        """Print the help, and end, if an option asks for it."""
        if self.options.deferred_help:
            self.print_help()
            raise cliff_help.HelpExit

    def print_help(self) -> None:
        """Print the options, and the commands by what they are about."""
        groups = commands.PROGRAMS[self.NAME]
        width = max(len(name) for group in groups.values() for name in group)
        with autopage.help_pager(self.stdout) as out:
            self.parser.print_help(out)
            for heading, group in groups.items():
                out.write(f'\n{heading}:\n')
                for name in sorted(group):
                    out.write(f'  {name:<{width}}  {self._described(name)}\n')

    def _described(self, name: str) -> str:
        """Return the first sentence about a command."""
        try:
            factory = self.command_manager.commands[name].load()
        # A dependency of the command is not installed.
        except ImportError as exc:
            return f'(cannot be loaded: {exc})'
        return factory(self, None).get_description().partition('\n')[0]

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
            return self._fail(exc, base.message(exc), 1)
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
                else (base.message(exc), 1))
            if isinstance(exc, base.UsageError):
                code = 2
            return self._fail(exc, text + base.hint(exc, self.NAME), code)

    def _fail(self, exc: Exception, text: str, code: int) -> int:
        if self.options.debug:
            traceback.print_exception(exc, file=self.stderr)
        self.stderr.write(f'{self.NAME}: {text}\n')
        return code


def _unknown(manage: ManageApp, argv: list[str]) -> str:
    if argv[0].startswith('-'):
        return (f'option {argv[0]} is not one of {manage.NAME} itself; those '
                f'of a command come after its name, as in "{manage.NAME} list '
                f'-f json"')
    name = ' '.join(itertools.islice(itertools.takewhile(
        lambda word: not word.startswith('-'), argv), 2))
    known = [found for found, _ in manage.command_manager]
    similar = [found for found in known if found.startswith(
        f'{argv[0]} ')] or difflib.get_close_matches(name, known)
    return f'unknown command "{name}"; ' + (
        f'did you mean one of: {", ".join(similar)}' if similar
        else f'see {manage.NAME} --help')


class HostApp(ManageApp):
    """The cliff application of gpgpu-host."""

    NAME = 'gpgpu-host'
    DESCRIPTION = 'Prepare and examine the PCI devices of this machine'

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add none, since this program asks no cloud."""


def run(argv: Sequence[str], conf: cfg.ConfigOpts | None = None,
        connect: _Connect | None = None,
        program: type[ManageApp] = ManageApp) -> int:
    """Run one command in this process.

    :param conf: see ManageApp
    :param connect: see ManageApp
    :returns: exit code: 0 success, 1 refused or failed, 2 wrong usage, or
        what the command itself defines
    """
    try:
        return int(program(conf, connect).run(list(argv)) or 0)
    except SystemExit as exc:
        return int(exc.code or 0)


def main() -> int:
    """Run the command of gpgpu-manage's command line."""
    return run(sys.argv[1:])


def host_main() -> int:
    """Run the command of gpgpu-host's command line."""
    return run(sys.argv[1:], program=HostApp)


if __name__ == '__main__':
    sys.exit(main())
