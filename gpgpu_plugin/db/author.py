# SPDX-License-Identifier: Apache-2.0
"""Authors of transactions, which their events name."""

from __future__ import annotations

import dataclasses
import typing

from sqlalchemy import orm

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


def note(session: orm.Session, author: Author) -> None:
    """Note with a transaction for whom it runs."""
    session.info[_KEY] = author


def of(session: orm.Session) -> Author:
    """Return for whom a transaction runs."""
    return typing.cast(Author, session.info.get(_KEY, CONDUCTOR))
