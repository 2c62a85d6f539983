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
"""gpgpu-manage: the operator's program."""

from __future__ import annotations

import argparse
import os
import sys
import typing
from collections.abc import Sequence

from cliff import app
from cliff import commandmanager
from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin import rpc
from gpgpu_plugin import version
from gpgpu_plugin.conductor import rpcapi
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api as db_api

NAMESPACE = 'gpgpu_manage'
CONFIG_FILES = ('/etc/gpgpu/gpgpu.conf',)


class GpgpuManage(app.App):
    """The cliff application.

    :param conf: configuration of a process that serves the conductor
        itself; None for a process of its own, which reads files
    """

    def __init__(self, conf: cfg.ConfigOpts | None = None) -> None:
        self._given = conf
        self._conf: cfg.ConfigOpts | None = conf
        super().__init__(
            description='Manage GPUs of an OpenStack Nova cloud',
            version=version.VERSION,
            command_manager=commandmanager.CommandManager(NAMESPACE),
            stdout=sys.stdout, stderr=sys.stderr, deferred_help=True)

    def build_option_parser(self, *args: typing.Any,
                            **kwargs: typing.Any) -> argparse.ArgumentParser:
        parser = super().build_option_parser(*args, **kwargs)
        parser.add_argument(
            '--config-file', action='append', metavar='FILE',
            help='configuration file, repeatable (default: '
                 f'{CONFIG_FILES[0]} if it is there)')
        parser.add_argument(
            '--config-dir', action='append', metavar='DIR',
            help='folder of configuration files, repeatable')
        parser.add_argument(
            '--os-cloud', default=os.environ.get('OS_CLOUD'), metavar='NAME',
            help='cloud of clouds.yaml, for "flavor set" (env: OS_CLOUD)')
        return parser

    @property
    def conf(self) -> cfg.ConfigOpts:
        """The configuration, read when a command first needs it."""
        if self._conf is None:
            self._conf = _read_conf(self.options)
        return self._conf

    @property
    def api(self) -> rpcapi.ConductorAPI:
        """The conductor.

        :raises ConfigInvalid: it cannot be reached from this process
        """
        if self._given is None and rpc.is_in_process(self.conf):
            raise exception.ConfigInvalid(
                option='[gpgpu] transport_url',
                reason='this transport reaches nobody outside a process; '
                       'give that of gpgpu-conductor, such as '
                       'rabbit://user:password@host:5672/, by --config-file')
        return rpcapi.ConductorAPI(self.conf)

    def run_subcommand(self, argv: list[str]) -> int:
        """Run a command; our own errors are one line and exit code 1."""
        try:
            return int(super().run_subcommand(argv) or 0)
        except (exception.GpgpuException, cfg.Error) as exc:
            if self.options.debug:
                raise
            print(f'gpgpu-manage: {message(exc)}', file=sys.stderr)
            return 1


def message(exc: Exception) -> str:
    """The error's own words, without what oslo.messaging appends."""
    if isinstance(exc, exception.GpgpuException) and exc.kwargs:
        return exc.msg_fmt % exc.kwargs
    return str(exc).partition('\n')[0]


def _read_conf(options: argparse.Namespace) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    conf_gpgpu.register_opts(conf)
    db_api.register_opts(conf)
    files = options.config_file or [
        each for each in CONFIG_FILES if os.path.exists(each)]
    arguments = [f'--config-file={each}' for each in files]
    arguments += [f'--config-dir={each}' for each in options.config_dir or ()]
    conf(arguments, project='gpgpu', default_config_files=[],
         version=version.VERSION)
    return conf


def run(argv: Sequence[str], conf: cfg.ConfigOpts | None = None) -> int:
    """Run one command.

    :param conf: see GpgpuManage
    :returns: exit code: 0 done, 1 refused or failed, 2 wrong usage
    """
    try:
        return int(GpgpuManage(conf).run(list(argv)) or 0)
    except SystemExit as exc:
        return int(exc.code or 0)


def main() -> int:
    """The program."""
    return run(sys.argv[1:])


if __name__ == '__main__':
    sys.exit(main())
