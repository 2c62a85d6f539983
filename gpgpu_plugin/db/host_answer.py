# SPDX-License-Identifier: Apache-2.0
"""Rows of ``host_answers``: questions to hosts, and their answers."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import clock
from gpgpu_plugin.db import models

_Answer = models.HostAnswer

_FORGOTTEN = 3600
"""Age in seconds at which a question is deleted: its conductor was killed."""


def ask(session: orm.Session, questions: Mapping[str, str]) -> None:
    """Store questions, the names of their hosts by UUID, and delete old ones.
    """
    now = clock.epoch(session)
    session.execute(
        sa.delete(_Answer).where(_Answer.asked_at < now - _FORGOTTEN))
    session.add_all(_Answer(question=question, host=host, asked_at=now)
                    for question, host in questions.items())


def answer(session: orm.Session, question: str, host: str,
           usages: str) -> bool:
    """Store the first answer to a question.

    :returns: False if nobody asked this host, or it has answered
    """
    done = session.execute(
        sa.update(_Answer)
        .where(_Answer.question == question, _Answer.host == host,
               _Answer.usages.is_(None))
        .values(usages=usages))
    return bool(done.rowcount)  # type: ignore[attr-defined]


def answered(session: orm.Session, question: str) -> str | None:
    """Return the answer to a question; None: there is none yet."""
    return session.scalar(
        sa.select(_Answer.usages).where(_Answer.question == question))


def all_answered(session: orm.Session, questions: Collection[str],
                 ) -> dict[str, str]:
    """Return the answers that there are, by question."""
    return dict(session.execute(
        sa.select(_Answer.question, _Answer.usages)
        .where(_Answer.question.in_(questions), _Answer.usages.is_not(None)),
    ).tuples().all())  # type: ignore[arg-type]


def forget(session: orm.Session, questions: Collection[str]) -> None:
    """Delete questions and their answers."""
    session.execute(
        sa.delete(_Answer).where(_Answer.question.in_(questions)))
