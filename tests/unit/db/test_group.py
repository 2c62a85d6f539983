# SPDX-License-Identifier: Apache-2.0
"""Tests of group rows."""

import sqlalchemy as sa

from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import tables
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

    def listed(self, **filters):
        with self.db.reader() as session:
            names = dict(session.execute(
                sa.select(tables.GROUPS.c.id, tables.VARIANTS.c.name)
                .join(tables.VARIANTS)).tuples().all())
            return [(host, names[group_id]) for host, _, group_id
                    in group_db.listed(session, 9, **filters)]

    def test_groups_of_live_hosts_are_listed_by_the_name_of_the_host(self):
        self.assertEqual([('h1', 'A'), ('h2', 'B'), ('h2', 'A')],
                         self.listed())
        self.assertEqual([('h1', 'A'), ('h2', 'A')], self.listed(variant='A'))
        self.assertEqual([('h2', 'A')], self.listed(host='h2', variant='A'))
        self.assertEqual([('h2', 'B'), ('h2', 'A')],
                         self.listed(marker='h1:A'))
