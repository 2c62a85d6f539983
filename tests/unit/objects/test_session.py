# SPDX-License-Identifier: Apache-2.0
"""Tests of the digest of a host."""

from oslotest import base

from gpgpu_plugin.objects import report

FIRST = ('a1', 'i1', 'instance', '')
SECOND = ('a2', 'i1', 'destination', 'm1')


class DigestTest(base.BaseTestCase):

    def test_order_of_assignments_makes_no_difference(self):
        self.assertEqual(report.digest(3, [FIRST, SECOND]),
                         report.digest(3, [SECOND, FIRST]))

    def test_every_part_makes_a_difference(self):
        digests = {report.digest(generation, assignments)
                   for generation, assignments in (
                       (3, [FIRST]), (4, [FIRST]), (3, []), (3, [SECOND]),
                       (3, [('a9', *FIRST[1:])]), (3, [('a1', 'i9',
                                                        *FIRST[2:])]),
                       (3, [(*FIRST[:3], 'm1')]), (3, [FIRST, SECOND]))}
        self.assertEqual(8, len(digests))

    def test_digest_fits_a_signed_number_of_64_bits(self):
        for generation in range(100):
            self.assertIn(report.digest(generation, []), range(2**63))
