# SPDX-License-Identifier: Apache-2.0
"""Notes of a transaction: for whom it runs, and lines for the log."""

from __future__ import annotations

import dataclasses
import typing

from oslo_log import log as logging
from sqlalchemy import orm

LOG = logging.getLogger(__name__)

_KEY = 'gpgpu_author'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Author:
    """Caller for whom a transaction runs.

    :ivar actor: such as ``host compute1`` or ``operator root@controller``
    :ivar request_id: of the user's request to Nova, or of the caller's own
    """

    actor: str
    request_id: str | None = None


CONDUCTOR = Author(actor='conductor')
"""Author of what no caller asked for."""


def note_author(session: orm.Session, author: Author) -> None:
    """Note with a transaction for whom it runs."""
    session.info[_KEY] = author


def author_of(session: orm.Session) -> Author:
    """Return for whom a transaction runs."""
    return typing.cast(Author, session.info.get(_KEY, CONDUCTOR))


# -- Lines for the log that appear when their transaction was committed.
#
# What is rolled back, or tried again, is not in the log.


_JOURNAL_KEY = 'gpgpu_journal'


def note_line(session: orm.Session, level: int, line: str) -> None:
    """Keep a line until the transaction is committed."""
    session.info.setdefault(_JOURNAL_KEY, []).append((level, line))


def write_lines(session: orm.Session) -> None:
    """Log the lines of a transaction that was committed."""
    for level, line in session.info.pop(_JOURNAL_KEY, ()):
        LOG.log(level, '%s', line)
