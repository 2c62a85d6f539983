# SPDX-License-Identifier: Apache-2.0
"""Tests of rows of vGPU types."""

import dataclasses

from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from tests.unit.db import base


class ByVariantTest(base.DatabaseTestCase):

    def listed(self, *, only_listed=True):
        with self.db.reader() as session:
            return sorted(group_db.types_by_variant(
                session, only_listed=only_listed))

    def test_without_groups_no_type_is_listed(self):
        self.add(base.variant('T4'))
        self.assertEqual([], self.listed())

    def test_type_of_several_hosts_is_listed_once(self):
        hosts = base.host('h1', id=1), base.host('h2', id=2)
        variant = base.variant('T4')
        self.add(*hosts, variant, *(
            base.group(host, variant, passthrough=True) for host in hosts))
        self.assertEqual([('T4', 'passthrough')], self.listed())

    def test_type_that_is_listed_on_one_host_alone_is_listed(self):
        hosts = base.host('h1', id=1), base.host('h2', id=2)
        first, second = base.variant('T4'), base.variant('T4-B')
        self.add(*hosts, first, second,
                 base.group(hosts[0], first, A=False, B=False),
                 base.group(hosts[1], first, A=True, B=False),
                 base.group(hosts[1], second, B=True))
        self.assertEqual([('T4', 'A'), ('T4-B', 'B')], self.listed())
        self.assertEqual([('T4', 'A'), ('T4', 'B'), ('T4-B', 'B')],
                         self.listed(only_listed=False))


class OfVariantTest(base.DatabaseTestCase):

    def test_types_of_all_hosts_or_of_a_live_one(self):
        hosts = [base.host('h1', id=1), base.host('h2', id=2),
                 base.host('h3', id=3, deleted=3)]
        first, second = base.variant('T4'), base.variant('T4-B')
        self.add(*hosts, first, second,
                 base.group(hosts[0], first, B=True, A=False),
                 base.group(hosts[1], first, A=True, C=True),
                 base.group(hosts[2], first, A=True),
                 base.group(hosts[1], second, D=True))
        with self.db.reader() as session:
            for host, expected in ((None, ['A', 'B', 'C']),
                                   ('h1', ['A', 'B']), ('h3', [])):
                self.assertEqual(expected, group_db.types_of_variant(
                    session, first.id, host))


class StoreTest(base.DatabaseTestCase):

    def test_types_change_come_and_go(self):
        host, variant = base.host('h1', id=1), base.variant('T4')
        self.add(host, variant, base.group(host, variant, A=True, B=True))

        def types():
            with self.db.reader() as session:
                [group] = host_rows.load_one(
                    session, host_db.get(session, 'h1')).groups
                return group.id, list(group.types)
        group_id, before = types()
        now = dataclasses.replace(
            before[0], max_vgpu_per_pgpu=2, max_capacity=4,
            remaining_capacity=3, enabled=False, video_ram=7)
        new = dataclasses.replace(before[1], id=0, vgpu_type='C')
        with self.db.writer() as session:
            group_db.store_types(session, {group_id: (before, [now, new])})
        _, (first, second) = types()
        self.assertEqual(now, first)
        self.assertEqual(new, dataclasses.replace(second, id=0))

    def test_same_types_are_not_stored(self):
        group_db.store_types(None, {1: ((), ())})
