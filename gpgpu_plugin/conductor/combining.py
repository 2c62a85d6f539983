# SPDX-License-Identifier: Apache-2.0
"""Questions that are asked at the same time and answered together.

Two may cost hardly more than one, if both are answered by the same statements
of SQL.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Sequence

Q = typing.TypeVar('Q')
A = typing.TypeVar('A')


@dataclasses.dataclass(eq=False)
class _Asked(typing.Generic[Q, A]):
    """One question, and its answer once somebody gave it."""

    question: Q
    answers: list[A] = dataclasses.field(default_factory=list)


class Combiner(typing.Generic[Q, A]):
    """Group of callers whose questions are answered together.

    One thread at a time computes answers, for its own question and for those
    that wait. An answer is never older than its question. A caller whose
    question was left out, or that has waited for ``patience``, computes its
    own answer; so does each caller after an error.

    :param answer: answers the first of some questions, and as many of the
        others as cost little more, in their order
    :param patience: seconds that an answer may take before nobody waits for
        it any more
    :param clock: seconds of a clock that never goes back
    """

    def __init__(self, answer: Callable[[Sequence[Q]], Sequence[A]],
                 patience: float,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._answer = answer
        self._patience = patience
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: list[_Asked[Q, A]] = []
        # When the thread began that answers for others; None: there is none.
        self._began_at: float | None = None

    def ask(self, question: Q) -> A:
        """Return the answer to a question.

        :raises Exception: what ``answer`` raises
        """
        asked: _Asked[Q, A] = _Asked(question)
        with self._changed:
            self._waiting.append(asked)
            self._wait(asked)
            if asked.answers:
                return asked.answers[0]
            others = self._others(asked)
        if others is None:
            return self._answer([question])[0]
        try:
            return self._answer_all(asked, others)
        finally:
            with self._changed:
                self._began_at = None
                self._changed.notify_all()

    def _wait(self, asked: _Asked[Q, A]) -> None:
        """Wait until a question is answered, or this thread has to do it."""
        while not asked.answers and self._left() > 0:
            self._changed.wait(self._left())

    def _left(self) -> float:
        """Return for how many seconds the answer under way is waited for."""
        if self._began_at is None:
            return 0
        return self._began_at + self._patience - self._clock()

    def _others(self, own: _Asked[Q, A]) -> list[_Asked[Q, A]] | None:
        """Return the other questions that a thread answers with its own.

        :returns: None: another thread takes long, and only the own question is
            answered
        """
        others = [asked for asked in self._waiting if asked is not own]
        if self._began_at is not None:
            self._waiting = others
            return None
        self._waiting = []
        self._began_at = self._clock()
        return others

    def _answer_all(self, own: _Asked[Q, A],
                    others: Sequence[_Asked[Q, A]]) -> A:
        try:
            answers = self._answer([
                own.question, *(asked.question for asked in others)])
        # Another question may be the one that cannot be answered. If it took
        # long, the database is the cause.
        except Exception:
            if not others or self._left() <= 0:
                raise
            return self._answer([own.question])[0]
        for asked, answer in zip(others, answers[1:], strict=False):
            asked.answers.append(answer)
        return answers[0]
