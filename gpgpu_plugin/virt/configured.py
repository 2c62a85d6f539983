# SPDX-License-Identifier: Apache-2.0
"""Check of the configuration that nova-compute starts with."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import exception

LOG = logging.getLogger(__name__)

SUPPORTED_NOVA = {33: '2026.1', 34: '2026.2'}
"""Releases of OpenStack, by the major version of their Nova."""


def check_nova_version(found: str) -> None:
    """Refuse a version of Nova that the plugin does not support.

    :raises ConfigInvalid: the message names both versions
    """
    if found.partition('.')[0] not in map(str, SUPPORTED_NOVA):
        supported = ' and '.join(
            f'{major} ({name})' for major, name in SUPPORTED_NOVA.items())
        raise exception.ConfigInvalid(
            option='compute_driver',
            reason=f'this version of gpgpu_plugin works with Nova '
                   f'{supported}, and this is Nova {found}')


@contextlib.contextmanager
def or_end() -> Iterator[None]:
    """End nova-compute with one line if its configuration is wrong.

    Nova would log the same with a traceback, or take a wrong value for a
    driver of another type. It ends in this way itself if there is no driver.

    :raises SystemExit: the configuration is wrong
    """
    try:
        yield
        return
    except (exception.ConfigInvalid, cfg.Error) as exc:
        reason = str(exc)
    # Not where it is caught: oslo.log would add the error once more.
    LOG.critical('nova-compute cannot start: %s', reason)
    sys.exit(1)
