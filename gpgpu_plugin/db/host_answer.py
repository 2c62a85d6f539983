# SPDX-License-Identifier: Apache-2.0
"""Table ``host_answers``: questions to hosts, and their answers.

The conductor that asked waits for the answer, and deletes it. Unique key: a
question is asked once. Index: those for which nobody waits any more are found.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import clock
from gpgpu_plugin.db import column

TABLE = sa.Table(
    'host_answers', column.METADATA,
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('question', column.UUID, nullable=False,
              comment='UUID of the question.'),
    sa.Column('host', column.NAME, nullable=False,
              comment='Name of the host that was asked.'),
    sa.Column('usages', column.LONG_TEXT,
              comment='The answer, as JSON; NULL until there is one.'),
    sa.Column('asked_at', sa.Double, nullable=False,
              comment='When it was asked, in seconds since the epoch.'),
    sa.UniqueConstraint('question'),
    sa.Index(None, 'asked_at'))

_FORGOTTEN = 3600
"""Age in seconds at which a question is deleted: its conductor was killed."""


def ask(session: orm.Session, questions: Mapping[str, str]) -> None:
    """Store questions, the names of their hosts by UUID, and delete old ones.
    """
    now = clock.epoch(session)
    session.execute(
        sa.delete(TABLE).where(TABLE.c.asked_at < now - _FORGOTTEN))
    if questions:
        session.execute(sa.insert(TABLE), [
            {'question': question, 'host': host, 'asked_at': now}
            for question, host in questions.items()])


def answer(session: orm.Session, question: str, host: str,
           usages: str) -> bool:
    """Store the first answer to a question.

    :returns: False if nobody asked this host, or it has answered
    """
    done = session.execute(
        sa.update(TABLE)
        .where(TABLE.c.question == question, TABLE.c.host == host,
               TABLE.c.usages.is_(None))
        .values(usages=usages))
    return bool(done.rowcount)  # type: ignore[attr-defined]


def answered(session: orm.Session, question: str) -> str | None:
    """Return the answer to a question; None: there is none yet."""
    return session.scalar(
        sa.select(TABLE.c.usages).where(TABLE.c.question == question))


def all_answered(session: orm.Session, questions: Collection[str],
                 ) -> dict[str, str]:
    """Return the answers that there are, by question."""
    return dict(session.execute(
        sa.select(TABLE.c.question, TABLE.c.usages)
        .where(TABLE.c.question.in_(questions), TABLE.c.usages.is_not(None)),
    ).tuples().all())


def forget(session: orm.Session, questions: Collection[str]) -> None:
    """Delete questions and their answers."""
    session.execute(
        sa.delete(TABLE).where(TABLE.c.question.in_(questions)))
