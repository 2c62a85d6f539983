# SPDX-License-Identifier: Apache-2.0
"""Processes of a race, which begin with all modules loaded."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
from multiprocessing import util

# Where that process listens, for as long as this one lives. A test would have
# it made in a folder of its own, which goes with the test.
util.get_temp_dir()

_LOADED = ['bench.race']


def context() -> multiprocessing.context.ForkServerContext:
    """Return a context whose processes are forks of one that loaded modules.

    A race has ten processes, and each would take longer to load them than to
    claim. That process has no threads and no connections.
    """
    made = multiprocessing.get_context('forkserver')
    made.set_forkserver_preload(_LOADED)
    return made
