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
"""Tests of confirmed migrations: roles and releases in one transaction."""

import fixtures
import sqlalchemy as sa

from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import confirmation
from gpgpu_plugin.db import models
from gpgpu_plugin.objects import claim as claim_obj
from tests.unit.conductor import base


class ConfirmationTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.report_second_host()

    def move(self, count, migration_uuid, host='h2'):
        granted = self.claim_destination(count, migration_uuid, host=host)
        claims.activate(self.db, base.uuids(granted))
        return base.uuids(granted)

    def confirm(self, migration_uuid, source):
        return confirmation.confirm(
            self.db, claim_obj.MigrationConfirmation(
                instance_uuid='i1', migration_uuid=migration_uuid,
                source_assignments=tuple(source)))

    def roles(self):
        """Return the assignments by host, role and migration."""
        found = {}
        for assignment in claims.of_instance(self.db, 'i1'):
            found.setdefault((
                assignment.host, str(assignment.role),
                assignment.migration_uuid), []).append(assignment.uuid)
        return found

    def test_destination_on_another_host(self):
        source = base.uuids(self.boot(2))
        moved = self.move(3, 'm1')
        views, changed = self.confirm('m1', source)
        self.assertEqual({('h2', 'instance', None): moved}, self.roles())
        self.assertEqual(['h1', 'h2'], [view.host for view in views])
        self.assertEqual(('h2',), changed)
        self.assertEqual({'dirty': 2, 'available': 6}, self.states())
        # The next migration finds nothing in its way, there and back.
        back = self.move(3, 'm2', 'h1')
        self.confirm('m2', moved)
        self.assertEqual({('h1', 'instance', None): back}, self.roles())

    def test_destination_on_the_same_host(self):
        source = base.uuids(self.boot(2))
        moved = self.move(3, 'm1', 'h1')
        views, changed = self.confirm('m1', source)
        self.assertEqual({('h1', 'instance', None): moved}, self.roles())
        self.assertEqual([(8, 2)], [self.offered(view) for view in views])
        self.assertEqual(('h1',), changed)

    def test_host_that_a_failed_move_left_has_to_compare(self):
        left = base.uuids(self.boot(2))
        moved = self.move(3, 'm1')
        self.assertEqual(('h1', 'h2'), self.confirm('m1', [])[1])
        self.assertEqual({('h1', 'instance', None): left,
                          ('h2', 'instance', None): moved}, self.roles())

    def test_repeated_confirmation_changes_nothing(self):
        source = base.uuids(self.boot(2))
        moved = self.move(3, 'm1')
        self.confirm('m1', source)
        back = self.move(2, 'm2', 'h1')
        self.confirm('m2', moved)
        self.confirm('m1', source)
        self.assertEqual({('h1', 'instance', None): back}, self.roles())

    def test_destination_without_devices(self):
        source = base.uuids(self.boot(2))
        self.confirm('m1', source)
        self.assertEqual({}, self.roles())

    def test_destination_that_is_named_as_source_stays(self):
        moved = self.move(2, 'm1')
        self.confirm('m1', [*base.uuids(self.boot(1)), *moved])
        self.assertEqual({('h2', 'instance', None): moved}, self.roles())

    def test_source_without_devices(self):
        moved = self.move(3, 'm1')
        self.confirm('m1', ())
        self.assertEqual({('h2', 'instance', None): moved}, self.roles())

    def test_nothing_to_confirm(self):
        self.assertEqual(((), ()), self.confirm('m1', ()))

    def test_instance_s_devices_left_by_a_failed_move_are_replaced(self):
        self.boot(2)
        # It failed on the destination, where the instance is now.
        moved = self.move(2, 'm1')
        back = self.move(2, 'm2', 'h1')
        self.confirm('m2', moved)
        self.assertEqual({('h1', 'instance', None): back}, self.roles())
        self.assertEqual(
            {'dirty': 2, 'assigned': 2, 'available': 4}, self.states())

    def test_build_after_the_migration_is_not_replaced(self):
        # Unshelved there before the confirmation arrives.
        self.move(2, 'm1', 'h1')
        built = base.uuids(self.boot(2))
        self.assertEqual(('h1',), self.confirm('m1', ())[1])
        self.assertEqual({('h1', 'instance', None): built}, self.roles())
        self.assertEqual(
            {'dirty': 2, 'assigned': 2, 'available': 4}, self.states())

    def test_what_is_replaced_may_be_younger_if_the_order_is_unknown(self):
        moved = self.move(2, 'm1', 'h1')
        with self.db.writer() as session:
            session.execute(sa.update(models.Assignment).values(
                host_generation=0))
        self.boot(2)
        self.confirm('m1', ())
        self.assertEqual({('h1', 'instance', None): moved}, self.roles())

    def test_ledger(self):
        source = base.uuids(self.boot(1))
        moved = self.move(1, 'm1')
        self.confirm('m1', source)
        with self.db.reader() as session:
            found = session.execute(sa.select(
                models.Event.kind, models.Event.host,
                models.Event.assignment_uuid).order_by(models.Event.id),
            ).tuples().all()
        self.assertEqual([('release', 'h1', *source),
                          ('confirm', 'h2', *moved)], found[-2:])

    def test_destination_left_by_a_failed_move_stays(self):
        source = base.uuids(self.boot(2))
        left = self.move(2, 'm1')
        moved = self.move(2, 'm2')
        self.confirm('m2', source)
        self.assertEqual({('h2', 'instance', None): moved,
                          ('h2', 'destination', 'm1'): left}, self.roles())

    def test_other_instances_are_left_alone(self):
        other = base.uuids(self.boot(2, 'i2'))
        self.move(2, 'm1')
        self.confirm('m1', other)
        self.assertEqual(other, [
            assignment.uuid
            for assignment in claims.of_instance(self.db, 'i2')])

    def test_all_or_nothing(self):
        source = base.uuids(self.boot(2))
        moved = self.move(3, 'm1')

        def fails(*args, **kwargs):
            raise RuntimeError('the database went away')
        with fixtures.MockPatchObject(confirmation.event_db, 'add', fails):
            self.assertRaises(RuntimeError, self.confirm, 'm1', source)
        self.assertEqual({('h1', 'instance', None): source,
                          ('h2', 'destination', 'm1'): moved}, self.roles())
