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
"""gpgpu-conductor, the only process that uses the plugin's database."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence

from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import version
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.conductor import service
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.rpc import transport as rpc_transport

LOG = logging.getLogger(__name__)


def prepare(argv: Sequence[str]) -> cfg.ConfigOpts:
    """Read the configuration of this process and set up logging.

    :raises ConfigInvalid: no other process could reach this one
    """
    conf = cfg.CONF
    logging.register_options(conf)
    conf_gpgpu.register_opts(conf)
    api.register_opts(conf)
    conf(list(argv), project='gpgpu', prog='gpgpu-conductor',
         version=version.VERSION)
    logging.setup(conf, 'gpgpu')
    conf_gpgpu.check(conf)
    rpc_transport.check_leaves_process(conf)
    return conf


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    try:
        conf = prepare(sys.argv[1:] if argv is None else argv)
        conductor = service.ConductorService(conf)
    # Whatever is wrong is one line for the operator: a database that is away,
    # a driver that is not installed, an option that is wrong.
    except Exception as exc:  # noqa: BLE001
        sys.stderr.write(f'gpgpu-conductor: {reach.message(exc)}\n')
        return 1
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    conductor.start()
    LOG.info('gpgpu-conductor %s serves', version.VERSION)
    stop.wait()
    conductor.stop()
    return 0


if __name__ == '__main__':
    sys.exit(main())
