# SPDX-License-Identifier: Apache-2.0
"""Tests through Nova's REST API, all in one process."""

# Before anything of Nova, in whichever module it is imported first.
from tests.fixtures import native_nova

from tests.fixtures import memory  # isort: skip

__all__ = ['native_nova']

memory.use()
memory.collect_rarely()
