# SPDX-License-Identifier: Apache-2.0
"""All tables of the database: importing this module defines each of them."""

from __future__ import annotations

from gpgpu_plugin.db import column
from gpgpu_plugin.db import event
from gpgpu_plugin.db import models
from gpgpu_plugin.db import usage

METADATA = column.METADATA

__all__ = ['METADATA', 'event', 'models', 'usage']
