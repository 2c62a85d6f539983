# SPDX-License-Identifier: Apache-2.0
"""Denied claims in the log of nova-compute: one line each, of the plugin.

Nova logs each build that fails as an error with its traceback. A denied claim
is no error: the host was taken meanwhile, and Nova tries the next one. The
plugin has logged the reason by then (``lifecycle``).
"""

from __future__ import annotations

import logging

from gpgpu_plugin.virt import exception

LOGGER = 'nova.compute.manager'
"""Logger of the module of Nova that builds instances."""


def _is_kept(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, exception.GPUClaimDenied)


def install() -> None:
    """Drop Nova's records of denials; repeated calls change nothing."""
    logging.getLogger(LOGGER).addFilter(_is_kept)
