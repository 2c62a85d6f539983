# SPDX-License-Identifier: Apache-2.0
"""Tests of host rows: live ones, tombstones, generations."""

import dataclasses

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import host as host_db
from tests.unit.db import base


class FindTest(base.DatabaseTestCase):

    def test_host_that_never_reported_is_not_found(self):
        with self.db.reader() as session:
            self.assertIsNone(host_db.find(session, 'h1'))
            self.assertIsNone(host_db.lock(session, 'h1'))
            exc = self.assertRaises(
                exception.NotFound, host_db.get, session, 'h1')
        self.assertEqual({'kind': 'host', 'name': 'h1'}, exc.kwargs)

    def test_deleted_host_is_not_found(self):
        self.add(base.host('h1', deleted=1))
        with self.db.reader() as session:
            self.assertIsNone(host_db.find(session, 'h1'))
            self.assertIsNone(host_db.lock(session, 'h1'))
            self.assertEqual(
                {}, host_db.by_node_uuids(session, ['node-of-h1']))
            self.assertEqual([], host_db.listed(session, 9))
            self.assertEqual([], host_db.lock_all(session))

    def test_host_made_again_is_found_beside_its_tombstone(self):
        self.add(base.host('h1', deleted=1), base.host('h1', generation=7))
        with self.db.reader() as session:
            for found in (host_db.get(session, 'h1'),
                          host_db.lock(session, 'h1'),
                          *host_db.by_node_uuids(
                              session, ['node-of-h1']).values()):
                self.assertEqual((7, 0), (found.generation, found.deleted))

    def test_hosts_are_listed_by_name_and_locked_by_id(self):
        self.add(base.host('b', id=1), base.host('a', id=2),
                 base.host('c', id=3))
        with self.db.writer() as session:
            self.assertEqual(
                ['a', 'b', 'c'],
                [row.name for row in host_db.listed(session, 9)])
            self.assertEqual(
                [1, 2, 3], [row.id for row in host_db.lock_all(session)])
            self.assertEqual(
                [1, 3], [row.id for row in host_db.lock_ids(
                    session, [3, 1, 99])])

    def test_locked_host_is_read_anew(self):
        self.add(base.host('h1', id=1))
        for lock in (lambda session: host_db.lock(session, 'h1'),
                     lambda session: host_db.lock_ids(session, [1])[0],
                     lambda session: host_db.lock_all(session)[0]):
            with self.db.writer() as session:
                row = host_db.get(session, 'h1')
                before = row.generation
                session.connection().exec_driver_sql(
                    'UPDATE hosts SET generation = generation + 1')
                self.assertEqual(before + 1, lock(session).generation)


class LastGenerationTest(base.DatabaseTestCase):

    def last(self, name, node_uuid):
        with self.db.reader() as session:
            return host_db.last_generation(session, name, node_uuid)

    def test_without_tombstone_it_is_zero(self):
        self.add(base.host('h1', generation=9))
        self.assertEqual(0, self.last('h1', 'node-of-h1'))

    def test_highest_tombstone_of_the_name_or_the_node_counts(self):
        self.add(base.host('h1', deleted=1, generation=4),
                 base.host('h1', deleted=2, generation=6),
                 base.host('h2', deleted=3, generation=8, node_uuid='n'),
                 base.host('h3', deleted=4, generation=20))
        self.assertEqual(6, self.last('h1', 'new'))
        self.assertEqual(8, self.last('h1', 'n'))
        self.assertEqual(0, self.last('new', 'new'))


class ChangedTest(base.DatabaseTestCase):

    def test_change_raises_the_generation_and_sets_the_time(self):
        self.add(base.host('h1', id=1, generation=3))
        with self.db.writer() as session:
            before = clock.epoch(session)
            host = host_db.lock(session, 'h1')
            changed = host_db.changed(session, host)
            host_db.store(session, host, changed)
        self.assertEqual(4, changed.generation)
        with self.db.reader() as session:
            [version] = host_db.changed_since(session, 0)
            self.assertEqual((1, 4, changed.changed_at), tuple(version))
            self.assertTrue(
                before <= version.changed_at <= clock.epoch(session))
            self.assertEqual(changed, host_db.get(session, 'h1'))

    def test_new_host_is_stored_as_it_is(self):
        self.add(base.host('h1', id=1))
        with self.db.writer() as session:
            new = host_db.insert(session, dataclasses.replace(
                host_db.get(session, 'h1'), name='h2', node_uuid='n2'))
            self.assertEqual(new, host_db.get(session, 'h2'))
            self.assertEqual(2, new.id)

    def test_hosts_that_changed_are_found_deleted_ones_too(self):
        self.add(base.host('h1', id=1, changed_at=5.5),
                 base.host('h2', id=2, changed_at=6.5, deleted=1),
                 base.host('h3', id=3, changed_at=6.25))
        with self.db.reader() as session:
            self.assertEqual(
                [(2, 1, 6.5), (3, 1, 6.25)],
                host_db.changed_since(session, 6.25))
            self.assertEqual(['h1', 'h2'], [
                row.name for row in host_db.by_ids(session, [2, 1])])

    def test_live_hosts_are_found_in_pages(self):
        self.add(*(base.host(f'h{number}', id=number, deleted=number == 2)
                   for number in range(1, 6)))
        with self.db.reader() as session:
            self.assertEqual([1, 3], [
                version.id for version in host_db.live_after(session, 0, 2)])
            self.assertEqual([4, 5], [
                version.id for version in host_db.live_after(session, 3, 9)])


class LockRowTest(base.DatabaseTestCase):

    def test_rows_that_order_writers_are_there(self):
        with self.db.writer() as session:
            host_db.lock_row(session, 'variants')
            self.assertRaises(sa.exc.NoResultFound, host_db.lock_row,
                              session, 'others')
