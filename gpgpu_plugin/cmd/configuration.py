# SPDX-License-Identifier: Apache-2.0
"""The configuration of a command, and the messages of its errors."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin import version
from gpgpu_plugin.cmd import base
from gpgpu_plugin.conf import gpgpu as conf_gpgpu


class ConfiguredCommand(base.Command):
    """Mixin of a cliff command that reads the configuration."""

    def configuration(self, *defaults: str) -> cfg.ConfigOpts:
        """Return the given configuration, else the one read from files.

        :param defaults: paths; the first that exists is read, unless the
            operator named other files
        """
        return self.manage.given_conf or read(self.app.options, defaults)

    def explain(self, exc: Exception) -> str:
        """Return an error as one line for the operator."""
        return message(exc)


def message(exc: Exception) -> str:
    """Return an error, also one of oslo.config, as one line."""
    if isinstance(exc, (cfg.ConfigFilesNotFoundError,
                        cfg.ConfigFilesPermissionDeniedError)):
        return (f'{base.first_line(exc)}; name others with --config-file, '
                f'or let the user of this program read them')
    if isinstance(exc, cfg.Error):
        return base.first_line(exc)
    return base.message(exc)


def read(options: argparse.Namespace,
         defaults: Sequence[str]) -> cfg.ConfigOpts:
    """Read the named files, else the first default that exists.

    :raises HostError: one of them cannot be read
    """
    conf = cfg.ConfigOpts()
    conf_gpgpu.register_opts(conf)
    files = options.config_file or [
        path for path in defaults if os.path.exists(path)][:1]
    _check_files(files, options.config_dir or ())
    arguments = [f'--config-file={path}' for path in files]
    arguments += [f'--config-dir={path}' for path in options.config_dir or ()]
    conf(arguments, project='gpgpu', default_config_files=[],
         default_config_dirs=[], version=version.VERSION)
    return conf


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse files that the arguments of a program name and cannot be read.

    For a program whose arguments oslo.config parses.

    :raises HostError: one of them cannot be read
    """
    parser = argparse.ArgumentParser(add_help=False)
    for option in ('--config-file', '--config-dir'):
        parser.add_argument(option, action='append', default=[])
    named, _ = parser.parse_known_args(list(arguments))
    _check_files(named.config_file, named.config_dir)


def _check_files(files: Sequence[str], folders: Sequence[str]) -> None:
    """Refuse files and folders that oslo.config cannot read.

    :raises HostError: there is one
    """
    for path in files:
        check_readable(path)
    for path in folders:
        if not os.path.isdir(path):
            raise exception.HostError(
                path=path, reason='it is not a directory; name one that has '
                                  'files *.conf with --config-dir')


def check_readable(path: str, option: str = '--config-file') -> None:
    """Refuse a file that oslo.config cannot read.

    oslo.config has another error for each cause, and some name no file.

    :param option: of the program, that names the file
    :raises HostError: it is missing, not text, or this user may not read it
    """
    try:
        with open(path, encoding='utf-8') as file:
            file.read()
    except (OSError, UnicodeDecodeError) as exc:
        reason = (exc.strerror if isinstance(exc, OSError)
                  else 'it is not a text file')
        remedy = ('run it as a user who may read it, such as root'
                  if isinstance(exc, PermissionError)
                  else f'name a configuration file with {option}')
        raise exception.HostError(
            path=path, reason=f'cannot be read: {reason}; {remedy}') from None
