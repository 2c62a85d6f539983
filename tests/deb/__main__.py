# SPDX-License-Identifier: Apache-2.0
"""Check that the Debian package builds, installs and serves.

    python3 -m tests.deb

It needs root on Debian, the packages of the profile test-deb of bindep.txt, a
package index, and RabbitMQ. It refuses a machine where gpgpu-conductor is
installed, and removes what it installed. Exit code 1 when a claim is false.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator

from tests.deb import package
from tests.fixtures import patience
from tests.fixtures import services
from tests.wheel import claims

_CONF = package.CONF_DIR / 'gpgpu.conf'
_PATH = '/usr/sbin:/usr/bin:/sbin:/bin'
"""Where the package's programs are, and not those of tox."""


def _configure() -> str:
    """Configure a cloud as doc/source/install.rst does."""
    _CONF.write_text(
        f'[gpgpu]\ntransport_url = {services.RABBITMQ}\n'
        f'topic_prefix = deb-{uuid.uuid4().hex[:8]}\n[database]\n'
        f'connection = sqlite:///{package.STATE_DIR}/gpgpu.sqlite\n',
        encoding='utf-8')
    _CONF.chmod(0o640)
    shutil.chown(_CONF, 'root', 'gpgpu')
    claims.run(['setpriv', '--reuid=gpgpu', '--regid=gpgpu', '--init-groups',
                'gpgpu-manage', 'db', 'sync'])
    claims.run(['gpgpu-manage', 'key', 'init'])
    shutil.chown(package.CONF_DIR / 'keys' / 'master.key', 'gpgpu')
    claims.run(['gpgpu-manage', 'key', 'create', 'operator', 'root'])
    return 'gpgpu-manage made the database and the keys'


@contextlib.contextmanager
def _notified() -> Iterator[socket.socket]:
    """Yield a socket on which systemd would hear that a unit serves."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f'\0{uuid.uuid4()}')
        receiver.settimeout(patience.LONG)
        yield receiver


def _serve(folder: pathlib.Path) -> str:
    """Run the command of the unit as its user, and ask it."""
    [command] = package.unit_values('ExecStart')
    [user] = package.unit_values('User')
    log = folder / 'log'
    with _notified() as receiver, log.open('w') as output:
        process = subprocess.Popen(
            ['setpriv', f'--reuid={user}', f'--regid={user}', '--init-groups',
             *shlex.split(command)], stdout=output, stderr=output, env={
                 'PATH': os.environ['PATH'],
                 'NOTIFY_SOCKET': '@' + receiver.getsockname()[1:].decode()})
        try:
            try:
                claims.check(receiver.recv(100) == b'READY=1', 'not ready')
            except TimeoutError:
                raise claims.WrongError(
                    f'{command} does not serve:\n{log.read_text()}') from None
            claims.run(['gpgpu-manage', 'conductor', 'ping', '--this-host'])
            _check_status()
            process.send_signal(signal.SIGTERM)
            code = process.wait(patience.LONG)
        finally:
            process.kill()
            process.wait()
    claims.check(code == 0, f'{command} ended with {code}')
    return f'"{command}" served as {user}, and ended with 0'


def _check_status() -> None:
    """Check that gpgpu-status has nothing against this machine."""
    done = claims.run(['gpgpu-status', 'upgrade', 'check', '--json'], code=2)
    found = {check['check']: check['result']
             for check in json.loads(done.stdout)['checks']}
    wrong = [name for name in (
        'Database schema', 'Conductors', 'Keys on this machine')
        if found[name]]
    claims.check(not wrong, f'gpgpu-status has findings: {done.stdout}')


def _prove(folder: pathlib.Path) -> Iterator[str]:
    """Yield each claim that holds. :raises WrongError: one does not"""
    built = package.build(folder)
    yield package.check_contents(built)
    try:
        yield package.install(built)
        yield package.install_again(built)
        os.environ['PATH'] = _PATH
        yield _configure()
        yield _serve(folder)
        yield package.purge()
    finally:
        package.clean_up()


def main() -> int:
    """Run the program; see the module."""
    began = time.monotonic()
    try:
        package.check_machine()
        with tempfile.TemporaryDirectory(prefix='gpgpu-deb-') as name:
            for proved in _prove(pathlib.Path(name)):
                print(f'{time.monotonic() - began:4.0f} s: {proved}',
                      flush=True)
    except claims.WrongError as exc:
        print(f'FALSE: {exc}')
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
