# SPDX-License-Identifier: Apache-2.0
"""Program that creates Nova's databases, empty, with one cell.

    python -m tests.functional_process.nova_db NOVA_CONF
"""

from __future__ import annotations

import os
import sys

os.environ['OS_NOVA_DISABLE_EVENTLET_PATCHING'] = '1'

# First: it refuses to be imported once anything imported eventlet.
from nova.cmd import manage  # isort: skip

import nova.conf
from nova import config


def main() -> None:
    """Set up Nova's databases, for which nova-manage needs four commands."""
    config.parse_args(['nova-manage', '--config-file', sys.argv[1]],
                      default_config_files=[])
    cell1 = nova.conf.CONF.database.connection
    if manage.ApiDbCommands().sync():
        sys.exit('api_db sync failed')
    manage.CellV2Commands().map_cell0(
        database_connection=cell1.replace('_cell1', '_cell0'))
    if manage.DbCommands().sync():
        sys.exit('db sync failed')
    manage.CellV2Commands().create_cell(name='cell1')


if __name__ == '__main__':
    main()
