# SPDX-License-Identifier: Apache-2.0
import threading

from oslotest import base

from gpgpu_plugin.conductor import combining
from tests.fixtures import patience


class CombinerTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.asked = []
        self.answers = {}
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.addCleanup(self.go_on.set)

    def answer(self, questions):
        """Answer questions; the first call waits, until it may go on."""
        self.asked.append(list(questions))
        if len(self.asked) == 1:
            self.begun.set()
            self.go_on.wait(patience.LONG)
            self.check()
        return [f'{question}!' for question in questions]

    def check(self):
        pass

    def fail(self):
        raise ValueError('wrong')

    def begin(self, *questions, limit=patience.LONG):
        """Ask the first one, and the others while it is answered."""
        combiner = combining.Combiner(
            self.answer, limit, clock=lambda: self.now)

        def ask(question):
            try:
                self.answers[question] = combiner.ask(question)
            except ValueError as exc:
                self.answers[question] = exc
        threads = [threading.Thread(target=ask, args=(question,))
                   for question in questions]
        threads[0].start()
        self.assertTrue(self.begun.wait(patience.LONG))
        for thread in threads[1:]:
            thread.start()
        if limit:
            patience.wait_until(
                lambda: len(combiner._waiting) == len(questions) - 1)
        return combiner, threads

    def end(self, threads):
        self.go_on.set()
        for thread in threads:
            thread.join()

    def test_questions_that_wait_are_answered_together(self):
        _, threads = self.begin('a', 'b', 'c', 'd')
        self.end(threads)
        first, others = self.asked
        self.assertEqual(['a'], first)
        self.assertEqual(['b', 'c', 'd'], sorted(others))
        self.assertEqual({name: f'{name}!' for name in 'abcd'}, self.answers)

    def test_question_is_not_answered_by_what_was_found_before(self):
        _, threads = self.begin('a', 'a')
        self.end(threads)
        self.assertEqual([['a'], ['a']], self.asked)

    def test_failure_is_of_the_one_who_met_it(self):
        self.check = self.fail
        _, threads = self.begin('a', 'b', 'c')
        self.end(threads)
        self.assertEqual('wrong', str(self.answers.pop('a')))
        self.assertEqual({'b': 'b!', 'c': 'c!'}, self.answers)

    def test_question_that_cannot_be_answered_fails_alone(self):
        combiner, threads = self.begin('a', 'b', 'bad', 'c')
        answered = combiner._answer

        def answer(questions):
            if 'bad' in questions:
                raise ValueError('wrong')
            return answered(questions)
        combiner._answer = answer
        self.end(threads)
        self.assertEqual('wrong', str(self.answers.pop('bad')))
        self.assertEqual({name: f'{name}!' for name in 'abc'}, self.answers)

    def test_failure_after_long_is_not_met_again(self):
        combiner, threads = self.begin('a', 'b', 'c', limit=patience.LONG)

        def answer(questions):
            self.asked.append(questions)
            self.now += patience.LONG
            raise ValueError('silent')
        combiner._answer = answer
        self.end(threads)
        self.assertEqual(3, len(self.asked))
        self.assertEqual('silent', str(self.answers['b']))
        self.assertEqual('silent', str(self.answers['c']))

    def test_question_that_was_left_out_is_answered_by_its_thread(self):
        combiner, threads = self.begin('a', 'b', 'c', 'd')
        answered = combiner._answer
        combiner._answer = lambda questions: answered(questions[:2])
        self.end(threads)
        self.assertEqual({name: f'{name}!' for name in 'abcd'}, self.answers)

    def test_each_reading_is_waited_for_anew(self):
        """One who waited for a long reading waits for the next one as well."""
        combiner, threads = self.begin('a', 'b', 'c', limit=patience.LONG)
        second, go_on = threading.Event(), threading.Event()
        self.addCleanup(go_on.set)
        answered = combiner._answer

        def answer(questions):
            second.set()
            go_on.wait(patience.LONG)
            return answered(questions)
        combiner._answer = answer
        self.now += patience.LONG - 1
        self.go_on.set()
        self.assertTrue(second.wait(patience.LONG))
        # More than the limit since they asked.
        self.now += 2
        with combiner._changed:
            combiner._changed.notify_all()
        go_on.set()
        self.end(threads)
        self.assertEqual(['b', 'c'], sorted(self.asked[1]))
        self.assertEqual(2, len(self.asked))

    def test_one_that_hangs_is_not_waited_for(self):
        combiner, threads = self.begin('a', limit=0)
        self.assertEqual('b!', combiner.ask('b'))
        self.assertEqual([['a'], ['b']], self.asked)
        self.end(threads)
        self.assertEqual({'a': 'a!'}, self.answers)
        # Its turn has ended; nothing is left.
        self.assertEqual('c!', combiner.ask('c'))
        self.assertEqual(['c'], self.asked[-1])

    def test_one_that_has_hung_for_long_is_not_waited_for_again(self):
        combiner, threads = self.begin('a', limit=patience.LONG)
        self.now += patience.LONG
        later = threading.Thread(target=combiner.ask, args=('b',))
        later.start()
        later.join(patience.LONG / 10)
        self.assertEqual([['a'], ['b']], self.asked)
        self.end([*threads, later])
