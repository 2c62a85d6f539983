# SPDX-License-Identifier: Apache-2.0
"""Tests of confirmed migrations: roles and releases in one transaction."""

import uuid

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.objects import claim as claim_obj
from tests.fixtures import hosts
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
        return claims.confirm(
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

    def test_ledger(self):
        source = base.uuids(self.boot(1))
        moved = self.move(1, 'm1')
        self.confirm('m1', source)
        with self.db.reader() as session:
            found = session.execute(sa.select(
                event_db.TABLE.c.kind, event_db.TABLE.c.host,
                event_db.TABLE.c.assignment_uuid).order_by(event_db.TABLE.c.id),
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
        with fixtures.MockPatchObject(event_db, 'add_all', fails):
            self.assertRaises(RuntimeError, self.confirm, 'm1', source)
        self.assertEqual({('h1', 'instance', None): source,
                          ('h2', 'destination', 'm1'): moved}, self.roles())


class OwnerTest(base.ConductorTestCase):
    """Calls of h1 (source), h2 (destination) and h3 (any other host)."""

    def setUp(self):
        super().setUp()
        self.nodes = {name: str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
                      for name in ('h1', 'h2', 'h3')}
        for name in ('h2', 'h3'):
            hosts.store(self.db, base.scan(
                base.EIGHT, host=name, node_uuid=self.nodes[name]))
        self.source = base.uuids(self.boot(1))
        self.moved = base.uuids(self.claim_destination(1, 'm1', host='h2'))

    def origin(self, name, **fields):
        return hosts.origin(name, self.nodes[name], **fields)

    def confirm(self, name, source=(), instance='i1'):
        return claims.confirm(
            self.db, claim_obj.MigrationConfirmation(
                instance_uuid=instance, migration_uuid='m1',
                source_assignments=tuple(source)), self.origin(name))

    def abort(self, name, uuids, **fields):
        return releases.abort(self.db, uuids, touched=True, fault=None,
                              origin=self.origin(name, **fields))

    def active(self, host):
        return [assignment.uuid
                for assignment in claims.of_instance(self.db, 'i1')
                if assignment.host == host]

    def test_claim_of_a_third_host_prevents_no_confirmation(self):
        # h3 read the migration's UUID, and says that it is from h3.
        claimed = base.uuids(self.claim_destination(
            1, 'm1', source='h3', host='h3'))
        _, changed = self.confirm('h1', self.source)
        self.assertEqual(([], self.moved, claimed),
                         tuple(map(self.active, ('h1', 'h2', 'h3'))))
        self.assertEqual(('h2', 'h3'), changed)

    def test_destination_confirms_what_it_claimed(self):
        self.confirm('h2')
        [found] = [found for found in claims.of_instance(self.db, 'i1')
                   if found.host == 'h2']
        self.assertEqual('instance', found.role)

    def states_and_usages(self):
        """Return state and lease of what h2 has, and how many usages run."""
        with self.db.reader() as session:
            usages = session.scalar(
                sa.select(sa.func.count()).select_from(usage_db.TABLE)
                .where(usage_db.TABLE.c.assignment_uuid.in_(self.moved)))
        return [(found.state, found.lease_expires_at is None)
                for found in claims.of_instance(self.db, 'i1')
                if found.host == 'h2'], usages

    def test_destination_activates_what_it_confirms(self):
        # It was hard rebooted there, and no conductor answered until now.
        for _ in range(2):
            self.confirm('h2')
            self.assertEqual(
                ([('assigned', True)], 1), self.states_and_usages())
        with self.db.reader() as session:
            kinds = session.scalars(sa.select(event_db.TABLE.c.kind).where(
                event_db.TABLE.c.assignment_uuid.in_(self.moved))
                .order_by(event_db.TABLE.c.id)).all()
        self.assertEqual(['claim', 'activate', 'confirm'], kinds)

    def test_source_activates_nothing_of_the_destination(self):
        self.confirm('h1', self.source)
        self.assertEqual(
            ([('provisioning', False)], 0), self.states_and_usages())

    def test_third_host_is_refused(self):
        for source in ((), self.source):
            self.assertRaises(exception.NotOwner, self.confirm, 'h3', source)
        self.assertRaises(exception.NotOwner, self.abort, 'h3', self.moved)
        self.assertEqual((self.source, self.moved),
                         tuple(map(self.active, ('h1', 'h2'))))

    def test_third_host_learns_nothing_by_uuids_of_another_instance(self):
        self.assertRaises(exception.NotOwner, self.confirm, 'h3',
                          self.source, 'i9')
        releases.release(self.db, self.source)
        self.assertIsNone(self.abort('h3', self.source))

    def test_source_ends_what_was_claimed_for_its_migration(self):
        self.assertEqual('h2', self.abort('h1', self.moved).host)
        self.assertEqual([], self.active('h2'))

    def test_source_ends_nothing_after_the_confirmation(self):
        self.confirm('h1', self.source)
        self.assertRaises(exception.NotOwner, self.abort, 'h1', self.moved)
        self.assertEqual(self.moved, self.active('h2'))

    def test_outdated_session_of_the_source_ends_nothing(self):
        self.assertRaises(exception.Fenced, self.abort, 'h1', self.moved,
                          session=0, start_uuid='old')
        self.assertEqual(self.moved, self.active('h2'))
