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
"""The service gpgpu-conductor, which any process can start and stop."""

from __future__ import annotations

import os
import socket
import uuid

from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import leases
from gpgpu_plugin.conductor import manager
from gpgpu_plugin.db import api
from gpgpu_plugin.db import migration
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import ping
from gpgpu_plugin.rpc import transport as rpc_transport


class ConductorService:
    """A conductor; several can share a database and a transport.

    :raises ConfigInvalid: the database does not have the newest schema
    """

    def __init__(self, conf: cfg.ConfigOpts,
                 transport: rpc_transport.Transport | None = None,
                 database: api.Database | None = None) -> None:
        self._transport = transport or rpc_transport.get_transport(conf)
        self.database = database or api.Database(conf)
        if not migration.is_current(self.database.engine):
            raise exception.ConfigInvalid(
                option='[database] connection',
                reason='the schema is at revision '
                       f'{migration.version(self.database.engine)} instead '
                       f'of {migration.revisions()[-1]}; run '
                       '"gpgpu-manage db sync"')
        compute = compute_api.ComputeAPI(conf, self._transport)
        self._leases = leases.LeaseWatch(self.database, compute)
        self._server = rpc_transport.server(
            self._transport, rpc_transport.conductor_topic(conf),
            f'{socket.gethostname()}:{os.getpid()}:{uuid.uuid4()}',
            [manager.ConductorManager(conf, self.database, compute),
             ping.PingEndpoint(self._transport)])

    def start(self) -> None:
        """Begin to serve calls, and to tell hosts of expired leases."""
        self._server.start()
        self._leases.start()

    def stop(self) -> None:
        """Accept no new call, and wait until all running ones have ended."""
        self._leases.stop()
        self._server.stop()
        self._server.wait()
