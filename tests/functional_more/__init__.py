# SPDX-License-Identifier: Apache-2.0
"""Tests of tests/functional again, with failures and each kind of vGPU.

Their cases are those of tests/functional, or come from there.
"""

# Before anything of Nova, in whichever module it is imported first.
from tests.fixtures import native_nova

from tests.fixtures import memory  # isort: skip

__all__ = ['native_nova']

memory.use()
memory.collect_rarely()
