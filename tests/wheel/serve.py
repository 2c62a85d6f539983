# SPDX-License-Identifier: Apache-2.0
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
