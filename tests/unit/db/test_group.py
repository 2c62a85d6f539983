# SPDX-License-Identifier: Apache-2.0
"""Tests of group rows."""

from gpgpu_plugin.db import group as group_db
from tests.unit.db import base


class FindTest(base.DatabaseTestCase):

    def setUp(self):
        super().setUp()
        self.hosts = (base.host('h2', id=1), base.host('h1', id=2),
                      base.host('h0', id=3, deleted=3))
        self.variants = base.variant('A'), base.variant('B')
        self.add(*self.hosts, *self.variants)
        self.add(base.group(self.hosts[0], self.variants[1], b=True),
                 base.group(self.hosts[1], self.variants[0], a=True, c=False),
                 base.group(self.hosts[0], self.variants[0], a=False),
                 base.group(self.hosts[2], self.variants[0], a=True))

    def test_hosts_with_a_group_of_a_variant_are_in_order(self):
        with self.db.reader() as session:
            first, second, third = group_db.host_ids_of_variant(
                session, self.variants[0].id, 0)
            self.assertLess(first, second)
            self.assertEqual([second], group_db.host_ids_of_variant(
                session, self.variants[0].id, first, 1))
            self.assertEqual([], group_db.host_ids_of_variant(
                session, self.variants[0].id, third))
