# SPDX-License-Identifier: Apache-2.0
"""Lines for the log that appear when their transaction was committed.

What is rolled back, or tried again, is not in the log.
"""

from __future__ import annotations

from oslo_log import log as logging
from sqlalchemy import orm

LOG = logging.getLogger(__name__)

_KEY = 'gpgpu_journal'


def note(session: orm.Session, level: int, line: str) -> None:
    """Keep a line until the transaction is committed."""
    session.info.setdefault(_KEY, []).append((level, line))


def write(session: orm.Session) -> None:
    """Log the lines of a transaction that was committed."""
    for level, line in session.info.pop(_KEY, ()):
        LOG.log(level, '%s', line)
