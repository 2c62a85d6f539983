# SPDX-License-Identifier: Apache-2.0
"""Claims about a fresh environment with the wheel and without Nova."""

from __future__ import annotations

import os
import pathlib
import re
import socket

from tests.wheel import claims
from tests.wheel import interpreters

HERE = pathlib.Path(__file__).resolve().parent
CONFIG_FILES = ('/etc/gpgpu/gpgpu.conf', '/etc/nova/nova.conf')


class Fresh:
    """One environment.

    :param folder: does not exist yet
    :ivar proved: claims that hold, one line each
    """

    def __init__(self, interpreter: interpreters.Interpreter,
                 wheel: pathlib.Path, folder: pathlib.Path) -> None:
        self.proved: list[str] = []
        self._bin = folder / 'venv' / 'bin'
        self._cwd = folder / 'cwd'
        self._interpreter = interpreter
        self._wheel = wheel
        self._version = wheel.name.split('-')[1]

    def python(self, *arguments: str) -> str:
        """Return what the environment's Python prints."""
        return claims.run([str(self._bin / 'python'), '-I', *arguments],
                          cwd=self._cwd).stdout

    def program(self, *argv: str) -> str:
        """Return the output of one of the plugin's programs."""
        done = claims.run([str(self._bin / argv[0]), *argv[1:]],
                          cwd=self._cwd)
        claims.check('Traceback' not in done.stderr, done.stderr)
        return done.stdout

    def refused(self, *argv: str) -> str:
        """Return the one line on stderr of a program that cannot do it."""
        done = claims.run([str(self._bin / argv[0]), *argv[1:]], code=1,
                          cwd=self._cwd)
        claims.check(
            re.fullmatch(rf'{argv[0]}: .+\n', done.stderr) is not None
            and not done.stdout, f'{" ".join(argv)} printed:\n'
                                 f'{done.stdout}{done.stderr}')
        return done.stderr

    def prove(self) -> None:
        """Check every claim. :raises WrongError: the first that is false"""
        self._cwd.mkdir(parents=True)
        claims.run([self._interpreter.path, '-m', 'venv',
                    str(self._bin.parent)])
        # Python compiles what is used when it is used.
        self.python('-m', 'pip', 'install', '-q', '--no-compile',
                    str(self._wheel))
        self._dependencies()
        self._programs()
        self._without_services()
        self._database()
        self.proved.append(
            self.python(str(HERE / 'import_all.py')).strip())

    def _dependencies(self) -> None:
        self.python('-m', 'pip', 'check')
        installed = self.python('-m', 'pip', 'list', '--format', 'freeze')
        nova = [line for line in installed.splitlines()
                if line.startswith(('nova=', 'openstack-placement_id='))]
        claims.check(not nova, 'the wheel pulls in', nova)
        self.proved.append(
            f'{len(installed.splitlines())} distributions, none of them Nova; '
            f'no requirement is missing')

    def _programs(self) -> None:
        said = self.program('gpgpu-manage', '--version').strip()
        claims.check(said == f'gpgpu-manage {self._version}',
                     f'gpgpu-manage --version says {said!r}')
        for name in ('gpgpu-conductor', 'gpgpu-host', 'gpgpu-status'):
            said = self.program(name, '--help')
            claims.check(said.startswith(f'usage: {name}'), said)
        said = self.program('gpgpu-manage', '--help')
        claims.check('cannot be loaded' not in said
                     and '  host list ' in said, said)
        said = self.program('gpgpu-host', 'list')
        claims.check('| address ' in said, said)
        said = self.program('gpgpu-host', 'list', '--text', '--machine',
                            'hgx-h100-8')
        gpus = said.count('10de 2330 ')
        claims.check(gpus == 8, f'{gpus} GPUs in hgx-h100-8:\n{said}')
        self.proved.append('gpgpu-manage --version and --help, gpgpu-host '
                           'list, gpgpu-conductor --help and gpgpu-status '
                           '--help run')

    def _without_services(self) -> None:
        self._no_configuration()
        with socket.socket() as unused:
            # Bound but not listening: nobody else gets the port.
            unused.bind(('127.0.0.1', 0))
            address = f'127.0.0.1:{unused.getsockname()[1]}'
            config = self._cwd / 'gpgpu.conf'
            config.write_text(
                f'[gpgpu]\ntransport_url = rabbit://me:secret@{address}/\n',
                encoding='utf-8')
            said = self.refused('gpgpu-manage', '--config-file', str(config),
                                'host', 'list')
        claims.check(f'{address} cannot be reached' in said
                     and 'secret' not in said, said)
        said = self.refused('gpgpu-nova-compute')
        claims.check('Nova is not installed' in said, said)
        self.proved.append('without a broker or without Nova the programs '
                           'say so in one line')

    def _no_configuration(self) -> None:
        existing = [name for name in CONFIG_FILES if os.path.exists(name)]
        if existing:
            self.proved.append(f'NOT TRIED: a machine without configuration, '
                               f'as this one has {", ".join(existing)}')
            return
        for command in ('device', 'host'):
            said = self.refused('gpgpu-manage', command, 'list')
            for name in ('transport_url', '--config-file', *CONFIG_FILES):
                claims.check(name in said, said)
        self.proved.append('without any configuration gpgpu-manage says in '
                           'one line which file it misses')

    def _database(self) -> None:
        database = self._cwd / 'gpgpu.sqlite'
        config = self._cwd / 'database.conf'
        config.write_text(f'[database]\nconnection = sqlite:///{database}\n',
                          encoding='utf-8')
        said = self.program('gpgpu-manage', '--config-file', str(config),
                            'db', 'sync')
        claims.check(said.startswith('schema is at revision '), said)
        variants = self.python(str(HERE / 'serve.py'), str(database))
        created = [line for line in variants.splitlines()
                   if line.endswith(' created 0')]
        claims.check(len(created) > 0
                     and len(created) == len(variants.splitlines()),
                     f'variant import printed:\n{variants}')
        self.proved.append(
            f'{said.strip()}; a conductor on threads took the {len(created)} '
            f'variants of the catalogue in the wheel')
