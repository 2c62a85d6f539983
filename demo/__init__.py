# SPDX-License-Identifier: Apache-2.0
"""A GPU cloud in one process, told step by step: ``python -m demo``."""

# Before anything of Nova, in whichever module it is imported first.
from tests.fixtures import native_nova

__all__ = ['native_nova']
