# SPDX-License-Identifier: Apache-2.0
"""Base class of all commands; it imports nothing that takes time."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from cliff import _argparse
from cliff import app as cliff_app
from cliff import command as cliff_command

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import commands
from gpgpu_plugin.cmd import listing

if typing.TYPE_CHECKING:
    import openstack.connection
    from cliff import lister
    from oslo_config import cfg


CONFIG_FILE = '/etc/gpgpu/gpgpu.conf'
NOVA_CONFIG_FILE = '/etc/nova/nova.conf'


class Application(cliff_app.App):
    """The application from the view of its commands; see cmd.manage.ManageApp.

    :ivar given_conf: configuration of a process that runs the conductor
        itself, else None
    :ivar connect: function that connects to a cloud; None for
        openstack.connect
    """

    given_conf: cfg.ConfigOpts | None
    connect: Callable[..., openstack.connection.Connection] | None


class _Formatter(_argparse.SmartHelpFormatter):
    """Formatter of paragraphs, and of examples, a line each."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        heading, found, rest = text.partition(commands.HEADING)
        if heading or not found:
            return '\n\n'.join(
                super(_Formatter, self)._fill_text(part, width, indent)
                for part in text.split('\n\n'))
        return f'{commands.HEADING[:-1]}{rest}\n'


def _check_columns(parsed_args: argparse.Namespace,
                   names: Sequence[str]) -> None:
    """Refuse a column that does not exist; cliff refuses only if all are so.

    :raises UsageError: there is one
    """
    known = {name.replace(' ', '_').lower() for name in names}
    for given in (*(parsed_args.columns or ()),
                  *(getattr(parsed_args, 'sort_columns', None) or ())):
        if given.replace(' ', '_').lower() not in known:
            raise UsageError(
                f'column {given} does not exist; columns: {", ".join(names)}')


class Command(cliff_command.Command):
    """Base of every command of gpgpu-manage and gpgpu-host.

    :cvar failure_code: exit code if it is refused or fails
    """

    failure_code = 1

    app: cliff_app.App

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return a parser whose help has the examples of the command."""
        parser = super().get_parser(prog_name)
        parser.formatter_class = _Formatter
        parser.epilog = commands.epilog(prog_name)
        return parser

    @property
    def manage(self) -> Application:
        """Return the application with the plugin's own type."""
        return typing.cast(Application, self.app)

    def note(self, text: str) -> None:
        """Print a remark on stderr that is not part of the result."""
        self.app.stderr.write(f'{self.app.NAME}: {text}\n')

    def detail(self, text: str) -> None:
        """Print a remark that only --verbose asks for."""
        if self.app.options.verbose_level:
            self.note(text)

    def produce_output(self, parsed_args: argparse.Namespace,
                       column_names: Sequence[str],
                       data: Iterable[Sequence[object]]) -> int:
        """Print the rows of a list, or the fields of one item.

        A CSV file has no formulas, and of a list without rows a table prints
        nothing.

        :raises UsageError: an option names a column that does not exist, or
            would sort a part of the rows
        """
        data = list(data)
        _check_columns(parsed_args, column_names)
        if getattr(parsed_args, 'sort_columns', None) and len(data) == getattr(
                parsed_args, 'limit', None):
            raise UsageError(
                f'--sort-column would sort only the {len(data)} rows that '
                f'--limit leaves; list all, or fewer by other options')
        if parsed_args.formatter == 'table' and not data:
            return 0
        if parsed_args.formatter == 'csv':
            data = [[listing.without_formula(value) for value in row]
                    for row in data]
        cliff_list = typing.cast('lister.Lister', super())
        return int(cliff_list.produce_output(parsed_args, column_names, data))

    def explain(self, exc: Exception) -> str:
        """Return an error of this command as one line for the operator.

        Commands that import a library with errors of its own override it.
        """
        return message(exc)


# -- Messages of errors for the operator, without any traceback.
#
# Errors of libraries are handled by the modules that import these libraries,
# so that other commands do not load them: cmd.configuration for oslo.config,
# cmd.reach for oslo.messaging.


_LISTS = {
    'PCI function': 'list',
    'active assignment': 'assignment list',
    'assignment': 'assignment list',
    'assignment of instance': 'assignment list',
    'device': 'device list --all',
    'host': 'host list',
    'usage': 'usage list',
    'valid key of': 'key list',
    'variant': 'variant list',
}
"""Command that lists all objects of a kind."""


class UsageError(Exception):
    """The command line is wrong in a way that argparse does not find."""


def message(exc: Exception) -> str:
    """Return the message of an error.

    ``str`` of an error that came by RPC has the remote traceback appended;
    its first argument is the message alone.
    """
    if isinstance(exc, (exception.GPUPluginException, UsageError)):
        return str(exc.args[0])
    if isinstance(exc, OSError) and exc.filename and exc.strerror:
        return f'{exc.filename}: {exc.strerror}'
    return f'{type(exc).__name__}: {first_line(exc)}'


def hint(exc: Exception, program: str) -> str:
    """Return which command lists what an error does not find, if one does."""
    kind = exc.kwargs.get('kind') if isinstance(
        exc, exception.NotFound) else None
    command = _LISTS.get(str(kind))
    return f'; see "{program} {command}"' if command else ''


def first_line(value: object) -> str:
    """Return the first line of a text that may have many."""
    return str(value).strip().partition('\n')[0]
