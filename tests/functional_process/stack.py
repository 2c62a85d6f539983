# SPDX-License-Identifier: Apache-2.0
"""Smallest cloud of real processes, with RabbitMQ and MariaDB."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import typing
import urllib.error
import urllib.request
import uuid

import fixtures
import pymysql

REPOSITORY = pathlib.Path(__file__).parents[2]
BIN = pathlib.Path(sys.executable).parent
RABBIT = os.environ.get('GPGPU_TEST_RABBIT',
                        'rabbit://guest:guest@127.0.0.1:5672/')
MYSQL = {'host': '127.0.0.1', 'port': 3306, 'user': 'root'}
DATABASES = ('placement', 'nova_api', 'nova_cell0', 'nova_cell1', 'gpgpu')

COMMON_CONF = """
[DEFAULT]
transport_url = {rabbit}
my_ip = 127.0.0.1
periodic_fuzzy_delay = 0
manager_shutdown_timeout = 0
graceful_shutdown_timeout = 3
[upgrade_levels]
compute = auto
[gpgpu]
topic_prefix = {topic_prefix}
keys_path = {state}/keys
# Only ends a wait for what never comes: machines are busy at times.
rpc_timeout = 60
[placement]
auth_type = admin_token
endpoint = http://127.0.0.1:{placement_port}
token = admin
[glance]
endpoint_override = http://127.0.0.1:{peers_port}
[neutron]
auth_type = admin_token
endpoint = http://127.0.0.1:{peers_port}
endpoint_override = http://127.0.0.1:{peers_port}
token = admin
[oslo_concurrency]
lock_path = {state}/lock
"""

NOVA_CONF = COMMON_CONF + """
[DEFAULT]
host = control
state_path = {state}
allow_resize_to_same_host = true
[database]
connection = {nova_cell1}
[api_database]
connection = {nova_api}
[wsgi]
api_paste_config = {state}/api-paste.ini
[scheduler]
workers = 1
discover_hosts_in_cells_interval = 1
[conductor]
workers = 1
[quota]
driver = nova.quota.NoopQuotaDriver
[filter_scheduler]
available_filters = nova.scheduler.filters.all_filters
available_filters = gpgpu_plugin.scheduler_filters.all_filters
enabled_filters = ComputeFilter,GpuFilter
"""

# Arguments of "variant create" for the machine of the computes. No guest needs
# CUDA here, so nobody activates partitions of its NVSwitches.
HGX_H100 = ('--vendor', '10de', '--device', '2330', '--unsupported-ok')

# Without databases, as Nova wants its computes.
COMPUTE_CONF = COMMON_CONF + """
[DEFAULT]
host = {host}
state_path = {state}/{host}
[gpgpu]
keys_path = {state}/{host}/keys
[gpgpu_compute]
# What a host keeps names its cloud: the next test's is another one.
state_path = {state}/{host}/gpgpu
[gpgpu_fake]
machine = hgx-h100-8
"""

FAKE_COMPUTE_CONF = COMPUTE_CONF + """
[DEFAULT]
compute_driver = gpgpu.GpuFakeDriver
"""

PLACEMENT_CONF = """
[api]
auth_strategy = noauth2
[placement_database]
connection = {placement}
"""

GPGPU_CONF = """
[DEFAULT]
transport_url = {rabbit}
[gpgpu]
topic_prefix = {topic_prefix}
keys_path = {state}/keys
rpc_timeout = 60
[database]
connection = {gpgpu}
"""


def free_port() -> int:
    """Return a TCP port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return int(probe.getsockname()[1])


class Databases(fixtures.Fixture):
    """Fixture with new databases on MariaDB; ``urls`` by purpose."""

    def _setUp(self) -> None:
        prefix = f'gpgpu_process_{uuid.uuid4().hex[:8]}'
        self.urls: dict[str, str] = {}
        connection = pymysql.connect(**MYSQL)
        self.addCleanup(connection.close)
        for name in DATABASES:
            connection.cursor().execute(f'CREATE DATABASE {prefix}_{name}')
            self.addCleanup(connection.cursor().execute,
                            f'DROP DATABASE {prefix}_{name}')
            self.urls[name] = (
                f'mysql+pymysql://{MYSQL["user"]}@{MYSQL["host"]}:'
                f'{MYSQL["port"]}/{prefix}_{name}?charset=utf8')


class Process(fixtures.Fixture):
    """Fixture with one program, which ends with all its children."""

    def __init__(self, log: pathlib.Path, environment: dict[str, str],
                 arguments: list[str]) -> None:
        super().__init__()
        self.log = log
        self._environment = environment
        self._arguments = arguments

    def _setUp(self) -> None:
        with self.log.open('a') as output:
            self.process = subprocess.Popen(
                self._arguments, stdout=output, stderr=output,
                env=self._environment, cwd=REPOSITORY,
                start_new_session=True)
        self.addCleanup(self._end)

    def _end(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


class Stack(fixtures.Fixture):
    """Fixture with the cloud; :meth:`start` starts one of its programs."""

    def _setUp(self) -> None:
        self.state = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.ports = {name: free_port()
                      for name in ('placement', 'peers', 'nova_api')}
        self._values: dict[str, object] = {
            'rabbit': RABBIT, 'topic_prefix': f'test-{uuid.uuid4().hex[:8]}',
            'state': self.state, 'bin': BIN,
            **self.useFixture(Databases()).urls,
            **{f'{name}_port': port for name, port in self.ports.items()}}
        for name, text in (('nova.conf', NOVA_CONF),
                           ('placement.conf', PLACEMENT_CONF),
                           ('gpgpu.conf', GPGPU_CONF)):
            self.write(name, text)
        paste = pathlib.Path(sys.prefix, 'etc/nova/api-paste.ini').read_text()
        (self.state / 'api-paste.ini').write_text(paste.replace(
            'keystonemiddleware.auth_token:filter_factory',
            'tests.functional_process.noauth:filter_factory'))
        self.environment = {
            **os.environ, 'OS_NOVA_CONFIG_DIR': str(self.state),
            'OS_PLACEMENT_CONFIG_DIR': str(self.state),
            'PYTHONPATH': str(REPOSITORY)}
        # Each service runs as its release runs it: with Nova 33, nova-compute
        # and nova-conductor use eventlet.
        self.environment.pop('OS_NOVA_DISABLE_EVENTLET_PATCHING', None)

    def write(self, name: str, text: str, **values: object) -> pathlib.Path:
        """Write a configuration file."""
        path = self.state / name
        path.write_text(text.format(**{**self._values, **values}))
        return path

    def conf(self, name: str) -> list[str]:
        """Return arguments that make a program read a configuration file."""
        return ['--config-file', str(self.state / name)]

    def program(self, name: str, *arguments: str,
                folder: pathlib.Path = BIN) -> list[str]:
        """Return the command line of an installed program."""
        path = shutil.which(name, path=str(folder))
        if path is None:
            raise FileNotFoundError(f'{name} is not installed in {folder}')
        return [path, *arguments]

    def wsgi(self, module: str, port: str) -> list[str]:
        """Return the command line that serves a WSGI module."""
        return [sys.executable, '-m', 'tests.functional_process.wsgi',
                module, str(self.ports[port])]

    def run(self, *arguments: str) -> str:
        """Run a program to its end and return its output.

        :raises AssertionError: it failed; with what it wrote to stderr
        """
        done = subprocess.run(
            arguments, env=self.environment, cwd=REPOSITORY, text=True,
            capture_output=True, timeout=600, check=False)
        if done.returncode:
            raise AssertionError(
                f'{" ".join(arguments)} ended with {done.returncode}:\n'
                f'{done.stdout}\n{done.stderr[-4000:]}')
        return done.stdout

    def start(self, name: str, arguments: list[str]) -> Process:
        """Start a program; it ends with the stack."""
        process: Process = self.useFixture(Process(
            self.state / f'{name}.log', self.environment, arguments))
        return process

    def wait_for_http(self, port: str, timeout: float = 600) -> None:
        """Wait until anything answers on a port."""
        request = urllib.request.Request(
            f'http://127.0.0.1:{self.ports[port]}/',
            headers={'X-Auth-Token': 'admin'})
        deadline = time.monotonic() + timeout
        while True:
            try:
                urllib.request.urlopen(request, timeout=60).close()
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def logs(self) -> typing.Iterator[tuple[str, str]]:
        """Return the end of every program's log."""
        for path in sorted(self.state.glob('*.log')):
            yield path.name, path.read_text()[-6000:]
