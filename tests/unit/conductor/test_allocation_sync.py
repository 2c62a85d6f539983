# SPDX-License-Identifier: Apache-2.0
"""Tests of recording which assignments an allocation covers."""

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.domain import naming
from tests.unit.conductor import base as conductor_base


class CompareTest(conductor_base.ConductorTestCase):

    PROVIDER = naming.provider_uuid(conductor_base.NODE, 'H100')

    def setUp(self):
        super().setUp()
        self.assignments = conductor_base.uuids(self.boot(2))

    def compare(self, allocations, assignments=None):
        return releases.compare_allocations(
            self.db, 'h1', allocations,
            self.assignments if assignments is None else assignments)

    def allocated(self, units):
        return {self.PROVIDER: {'i1': {'CUSTOM_GPU_H100': units}}}

    def events(self):
        with self.db.reader() as session:
            return session.execute(sa.select(
                event_db.TABLE.c.kind, event_db.TABLE.c.assignment_uuid).where(
                    event_db.TABLE.c.kind.like('allocation%')).order_by(
                        event_db.TABLE.c.id)).tuples().all()

    def test_allocation_that_nova_removed_is_reserved_until_it_returns(self):
        for units, reserved in ((2, 0), (1, 1), (0, 2), (2, 0)):
            self.assertEqual((8, reserved), self.offered(
                self.compare(self.allocated(units))))
        first, second = self.assignments
        self.assertEqual([
            ('allocation_lost', second), ('allocation_lost', first),
            ('allocation_found', first), ('allocation_found', second),
        ], self.events())

    def test_same_answer_again_changes_no_generation(self):
        first = self.compare(self.allocated(1))
        self.assertEqual(first, self.compare(self.allocated(1)))

    def test_change_is_a_new_generation(self):
        first = self.compare(self.allocated(2))
        self.assertGreater(
            self.compare(self.allocated(1)).generation, first.generation)

    def test_provider_without_an_answer_keeps_what_is_stored(self):
        # Placement was asked for other providers, or not at all.
        self.assertEqual((8, 0), self.offered(self.compare({})))
        self.assertEqual([], self.events())

    def test_assignment_made_after_the_question_keeps_what_is_stored(self):
        self.assertEqual((8, 1), self.offered(self.compare(
            {self.PROVIDER: {}}, self.assignments[:1])))

    def test_unknown_host_is_not_found(self):
        self.assertRaises(
            exception.NotFound, releases.compare_allocations, self.db, 'h9',
            {}, [])
