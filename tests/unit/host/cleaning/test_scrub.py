# SPDX-License-Identifier: Apache-2.0

from gpgpu_plugin.host.vfio import operations
from tests.unit.host.cleaning import card

_MIB = 1024 ** 2


class ScrubTest(card.CardCase):

    def setUp(self):
        super().setUp()
        self.vfio.outlasting.add(self.address)

    def test_all_memory_is_zero_afterwards(self):
        self.use()
        verdict, results = self.clean('scrub', memory_mib=2)
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertEqual(
            {'bytes_of_memory': 2 * _MIB, 'bytes_of_window': 2 * _MIB,
             'bytes_verified': 2 * _MIB}, results['scrub'].facts)
        self.assertEqual(bytes(2 * _MIB), self.vfio.content(self.address))

    def test_all_that_the_bar_shows_is_written_without_a_canary(self):
        """The variant's --memory-mib may be too small."""
        secret, place = b'TENANT-A', 3 * _MIB + 5
        self.vfio.sizes[self.address] = 4 * _MIB
        self.use()
        self.vfio.content(self.address)[place:place + len(secret)] = secret
        verdict, results = self.clean('reset+settings+scrub', memory_mib=2)
        self.assertNotIn(secret, self.vfio.content(self.address))
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertEqual(
            {'bytes_of_memory': 4 * _MIB, 'bytes_of_window': 4 * _MIB,
             'bytes_verified': 4 * _MIB}, results['scrub'].facts)

    def test_memory_that_takes_too_long_is_not_begun(self):
        self.vfio.sizes[self.address] = operations.SCRUB_LIMIT + 1
        for memory_mib in (operations.SCRUB_LIMIT // _MIB + 1, 2):
            _, results = self.clean('reset+scrub', memory_mib=memory_mib)
            self.assertEqual('inapplicable', results['scrub'].outcome)
            self.assertIn(f'{operations.SCRUB_LIMIT} of',
                          results['scrub'].reason)

    def test_window_on_a_larger_memory_is_no_scrub(self):
        self.use()
        verdict, results = self.clean('scrub', memory_mib=81920)
        self.assertFalse(verdict.passed)
        self.assertEqual('inapplicable', results['scrub'].outcome)
        self.assertIn(f'{2 * _MIB} of {81920 * _MIB} bytes',
                      verdict.failure)

    def test_unknown_size_of_memory_is_no_scrub(self):
        self.use()
        verdict, _ = self.clean('scrub')
        self.assertFalse(verdict.passed)
        self.assertIn('--memory-mib', verdict.failure)

    def test_memory_that_does_not_keep_a_byte_fails(self):
        scrub = self.vfio.scrub
        self.vfio.scrub = lambda *args: scrub(*args) - 1
        self.use()
        verdict, results = self.clean('scrub', memory_mib=2)
        self.assertFalse(verdict.passed)
        self.assertEqual('failed', results['scrub'].outcome)
        self.assertIn(f'1 of {2 * _MIB} bytes did not keep',
                      verdict.failure)
        # What it would find says nothing.
        self.assertNotIn('canary', results)
