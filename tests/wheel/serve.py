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
"""Runs in the fresh environment: a conductor serves gpgpu-manage.

Both in this process, over oslo.messaging's fake driver and SQLite, so that it
needs no server: python serve.py DATABASE-FILE
"""

from __future__ import annotations

import sys

from oslo_config import cfg
from oslo_service import backend

from gpgpu_plugin.cmd import manage
from gpgpu_plugin.conductor import service
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api


def main() -> int:
    """Import the catalogue that the wheel brings."""
    conf = cfg.ConfigOpts()
    conf_gpgpu.register_opts(conf)
    api.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override('transport_url', 'fake:/', 'gpgpu')
    conf.set_override('connection', f'sqlite:///{sys.argv[1]}', 'database')
    conductor = service.ConductorService(conf)
    assert backend.get_backend_type() is backend.BackendType.THREADING
    conductor.start()
    try:
        return manage.run(['variant', 'import', '-f', 'value'], conf)
    finally:
        conductor.stop()


if __name__ == '__main__':
    sys.exit(main())
