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
"""Tests of the digest of a host."""

from oslotest import base

from gpgpu_plugin.objects import session

FIRST = ('a1', 'i1', 'instance', '')
SECOND = ('a2', 'i1', 'destination', 'm1')


class DigestTest(base.BaseTestCase):

    def test_order_of_assignments_makes_no_difference(self):
        self.assertEqual(session.digest(3, [FIRST, SECOND]),
                         session.digest(3, [SECOND, FIRST]))

    def test_every_part_makes_a_difference(self):
        digests = {session.digest(generation, assignments)
                   for generation, assignments in (
                       (3, [FIRST]), (4, [FIRST]), (3, []), (3, [SECOND]),
                       (3, [('a9', *FIRST[1:])]), (3, [('a1', 'i9',
                                                        *FIRST[2:])]),
                       (3, [(*FIRST[:3], 'm1')]), (3, [FIRST, SECOND]))}
        self.assertEqual(8, len(digests))

    def test_digest_fits_a_signed_number_of_64_bits(self):
        for generation in range(100):
            self.assertIn(session.digest(generation, []), range(2**63))
