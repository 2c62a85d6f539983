# SPDX-License-Identifier: Apache-2.0
"""All tables of the database: importing this module defines each of them."""

from __future__ import annotations

from gpgpu_plugin.db import caller_key
from gpgpu_plugin.db import column
from gpgpu_plugin.db import event
from gpgpu_plugin.db import host
from gpgpu_plugin.db import ledger
from gpgpu_plugin.db import outbox
from gpgpu_plugin.db import request_kind
from gpgpu_plugin.db import sighting
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import usage

METADATA = column.METADATA

__all__ = [
    'METADATA', 'caller_key', 'event', 'host', 'ledger', 'outbox',
    'request_kind', 'sighting', 'tables', 'usage']
