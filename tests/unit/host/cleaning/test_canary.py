# SPDX-License-Identifier: Apache-2.0

from tests.unit.host.cleaning import card


class CanaryTest(card.CardCase):

    def test_memory_that_a_reset_clears_passes(self):
        self.use()
        verdict, results = self.clean()
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertEqual({'marks': 16, 'places': 16, 'found': 0},
                         results['canary'].facts)
        self.assertNotIn(b'SECRET', self.vfio.content(self.address))

    def test_memory_that_outlasts_the_reset_fails(self):
        self.vfio.outlasting.add(self.address)
        self.use()
        verdict, results = self.clean()
        self.assertFalse(verdict.passed)
        self.assertEqual(16, results['canary'].facts['found'])
        self.assertIn('outlasted the cleaning', verdict.failure)
        self.assertIn(b'SECRET', self.vfio.content(self.address))

    def test_part_of_the_memory_that_outlasts_the_reset_fails(self):
        self.use()
        reset = self.vfio.reset

        def clear_half(address):
            content = self.vfio.content(address)
            kept = bytes(content[len(content) // 2:])
            reset(address)
            self.vfio.content(address)[-len(kept):] = kept
        self.vfio.reset = clear_half
        verdict, results = self.clean()
        self.assertFalse(verdict.passed)
        self.assertEqual(8, results['canary'].facts['found'])

    def test_memory_that_keeps_no_mark_proves_nothing(self):
        self.use()
        self.vfio.stuck.add(self.address)
        verdict, results = self.clean()
        self.assertFalse(verdict.passed)
        self.assertEqual('inapplicable', results['canary'].outcome)
        self.assertIn('only 0 of 16 marks could be read back',
                      verdict.failure)

    def test_gpu_without_memory_proves_nothing(self):
        self.use()
        self.vfio.sizes[self.address] = 0
        verdict, _ = self.clean()
        self.assertIn('canary inapplicable: the host reaches no memory',
                      verdict.failure)

    def test_memory_that_is_not_readable_after_the_reset_proves_nothing(self):
        """A guest may have set up what the BAR shows."""
        self.vfio.outlasting.add(self.address)
        self.use()
        reset = self.vfio.hot_reset

        def break_window(*args):
            reset(*args)
            self.vfio.find_marks = lambda *args: 0
            self.vfio.stuck.add(self.address)
        self.vfio.hot_reset = break_window
        verdict, results = self.clean()
        self.assertFalse(verdict.passed)
        self.assertEqual('inapplicable', results['canary'].outcome)
        self.assertIn('after the reset only 0 of 16', verdict.failure)

    def test_no_mark_is_left(self):
        self.use()
        self.assertTrue(self.clean()[0].passed)
        self.assertEqual(bytes(len(self.vfio.content(self.address))),
                         self.vfio.content(self.address))

    def test_marks_of_an_earlier_cleaning_are_not_taken_for_its_own(self):
        self.vfio.outlasting.add(self.address)
        self.use()
        self.assertFalse(self.clean()[0].passed)
        self.vfio.outlasting.clear()
        self.assertTrue(self.clean()[0].passed)
