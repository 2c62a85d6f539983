# SPDX-License-Identifier: Apache-2.0
"""The cloud of one run: conductors and hosts as processes, and a database."""

from __future__ import annotations

import contextlib
import pathlib
import typing
import uuid

import sqlalchemy as sa
from oslo_config import cfg

from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.objects import admin
from tests.fixtures import database
from tests.fixtures import patience
from tests.fixtures import proxy
from tests.fixtures import services
from tests.storm import host as host_mod
from tests.storm import processes
from tests.storm import results

CONDUCTORS = 3
HOSTS = 4
GPUS = 8

_CONF = """
[DEFAULT]
transport_url = {transport}
[gpgpu]
topic_prefix = {topic_prefix}
# A message that is sent twice must change nothing even if it is not refused.
sign_calls = false
digest_interval = {digest_interval}
[database]
connection = {connection}
[oslo_messaging_rabbit]
kombu_reconnect_delay = 0.1
"""


class Cloud:
    """Conductors and hosts of one run, as a context.

    :param server: URL of the database server
    :param seed: seed of the random choices of the hosts
    :param folder: folder for the files of the processes
    :ivar proxies: proxies to the broker: of the conductors, and of the hosts
    """

    def __init__(self, server: str, seed: str, folder: pathlib.Path) -> None:
        self._server = server
        self._seed = seed
        self._folder = folder
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> typing.Self:
        try:
            self._set_up()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _set_up(self) -> None:
        prefix = f'storm-{uuid.uuid4().hex[:8]}'
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        api.register_opts(conf)
        conf([], project='gpgpu', default_config_files=[])
        created = self._stack.enter_context(
            database.ServerDatabase(conf, self._server))
        self.db = created.db
        variant_admin.create(self.db, admin.VariantInfo(
            name=host_mod.VARIANT, vendor='10de', device='2330',
            unsupported_ok=True))
        rabbit = sa.make_url(services.RABBITMQ)
        self.proxies = [self._stack.enter_context(proxy.Proxy(
            (rabbit.host or '127.0.0.1', rabbit.port or 5672)))
            for _ in range(2)]
        transports = [
            rabbit.set(host='127.0.0.1', port=entry.port).render_as_string(
                hide_password=False) for entry in self.proxies]
        self._start_conductors(transports[0], prefix, created.connection)
        self._start_hosts(transports[1], prefix)

    def _start_conductors(self, transport: str, prefix: str,
                          connection: str) -> None:
        path = self._folder / 'gpgpu.conf'
        path.write_text(_CONF.format(
            transport=transport, topic_prefix=prefix,
            digest_interval=host_mod.DIGEST_INTERVAL,
            connection=connection.replace('%', '%%')))
        self.conductors = [processes.Conductor(number, path)
                           for number in range(CONDUCTORS)]
        for conductor in self.conductors:
            self._stack.callback(conductor.kill)
            conductor.start()
        for conductor in self.conductors:
            conductor.wait_until_it_serves()

    def _start_hosts(self, transport: str, prefix: str) -> None:
        self.hosts = []
        for number in range(HOSTS):
            name = f'h{number}'
            folder = self._folder / name
            folder.mkdir()
            setting = host_mod.Setting(
                name=name, folder=folder, transport=transport,
                topic_prefix=prefix, seed=f'{self._seed}/{name}',
                hosts=tuple(f'h{other}' for other in range(HOSTS)))
            host_mod.machine(setting)
            self.hosts.append(processes.Host(setting))
        for host in self.hosts:
            self._stack.callback(host.kill)
            host.start()
        assert patience.wait_until(lambda: (
            self.check(),
            results.states(self.db).total() == HOSTS * GPUS)[1])

    @property
    def settings(self) -> list[host_mod.Setting]:
        """Return the settings of all hosts."""
        return [host.setting for host in self.hosts]

    def check(self) -> None:
        """Check that no GPU was used twice and no process ended by itself.

        :raises DoubleUse: a GPU was used twice
        :raises ProcessDied: a process ended that was not killed
        """
        for host in self.hosts:
            host.check()
        for conductor in self.conductors:
            conductor.check()

    def command(self, name: str) -> None:
        """Run a command on all hosts, and wait until all have done it."""
        for host in self.hosts:
            host.send_command(name)
        for host in self.hosts:
            host.wait_for_command(name)
