#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
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
    """Answers all questions that wait, whenever one has been answered.

    The thread that comes first answers for those that wait with it. Each
    answer is found after its question was asked. One that hangs or fails costs
    its own thread only: the others answer their questions alone.

    :param answer: answers some questions, in their order
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
        self._turn = threading.Lock()
        # When the turn of the last thread began.
        self._began_at = float('-inf')
        self._lock = threading.Lock()
        self._waiting: list[_Asked[Q, A]] = []

    def ask(self, question: Q) -> A:
        """Return the answer to a question.

        :raises Exception: what ``answer`` raises
        """
        asked: _Asked[Q, A] = _Asked(question)
        with self._lock:
            self._waiting.append(asked)
        waited = self._clock() - self._began_at
        is_mine = self._turn.acquire(timeout=max(0, self._patience - waited))
        try:
            if is_mine:
                self._began_at = self._clock()
            if not asked.answers:
                self._answer_all(self._taken(asked, with_others=is_mine))
        finally:
            if is_mine:
                self._turn.release()
        return asked.answers[0]

    def _taken(self, own: _Asked[Q, A], *,
               with_others: bool) -> list[_Asked[Q, A]]:
        """Return what this thread answers; nobody else will take it."""
        with self._lock:
            others = [asked for asked in self._waiting if asked is not own]
            self._waiting = [] if with_others else others
        return [own, *others] if with_others else [own]

    def _answer_all(self, taken: Sequence[_Asked[Q, A]]) -> None:
        answers = self._answer([asked.question for asked in taken])
        for asked, answer in zip(taken, answers, strict=True):
            asked.answers.append(answer)
