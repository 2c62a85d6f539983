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
"""Which of an instance's assignments its guest gets."""

import types
from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin.objects import claim
from gpgpu_plugin.virt import roles

INSTANCE, DESTINATION = (
    types.SimpleNamespace(
        uuid=f'a-{role}', role=role, migration_uuid=migration_uuid)
    for role, migration_uuid in (
        (claim.ClaimRole.INSTANCE, None),
        (claim.ClaimRole.DESTINATION, 'm1')))


class SelectorTest(base.BaseTestCase):

    def test_claim_of_another_migration_is_not_the_destination_s(self):
        other = types.SimpleNamespace(
            role=claim.ClaimRole.DESTINATION, migration_uuid='m0')
        migration = types.SimpleNamespace(uuid='m1')
        for assignment, is_destination in (
                (INSTANCE, False), (DESTINATION, True), (other, False)):
            self.assertIs(is_destination,
                          roles.destination_of(migration)(assignment))
            self.assertIs(not is_destination,
                          roles.source_of(migration)(assignment))

    def test_every_role_is_any_role(self):
        self.assertTrue(roles.any_role(INSTANCE))
        self.assertTrue(roles.any_role(DESTINATION))


class CurrentTest(base.BaseTestCase):

    def roles(self, *, moving=True, dest='h1', flavor=1, new_flavor=2,
              assigned=(INSTANCE, DESTINATION)):
        """Roles of the assignments that count."""
        migration = types.SimpleNamespace(
            uuid='m1', source_compute='h1', dest_compute=dest)
        self.useFixture(fixtures.MockPatchObject(
            roles, 'migration_of', return_value=migration))
        tracker = types.SimpleNamespace(assignments=types.SimpleNamespace(
            of_instance=lambda instance_uuid: assigned))
        selector = roles.current(types.SimpleNamespace(
            uuid='i1', migration_context=object() if moving else None,
            flavor=types.SimpleNamespace(id=flavor),
            new_flavor=None if new_flavor is None
            else types.SimpleNamespace(id=new_flavor)), tracker)
        return [str(assignment.role) for assignment in assigned
                if selector(assignment)]

    def test_no_migration(self):
        self.assertEqual(['instance', 'destination'],
                         self.roles(moving=False))

    def test_source_of_two_hosts_has_what_the_instance_had(self):
        left = types.SimpleNamespace(
            role=claim.ClaimRole.DESTINATION, migration_uuid='m0')
        for flavor in (1, 2):
            self.assertEqual(['instance'], self.roles(
                dest='h2', flavor=flavor, assigned=(INSTANCE,)))
            self.assertEqual(['destination'], self.roles(
                dest='h2', flavor=flavor, assigned=(left,)))

    def test_destination_of_two_hosts_has_what_was_claimed_for_it(self):
        for flavor in (1, 2):
            self.assertEqual(['destination'], self.roles(
                dest='h2', flavor=flavor, assigned=(DESTINATION,)))
            # Beside what an earlier move left there.
            self.assertEqual(['destination'], self.roles(
                dest='h2', flavor=flavor))

    def test_one_host_has_both(self):
        self.assertEqual(['instance'], self.roles(flavor=1))
        self.assertEqual(['destination'], self.roles(flavor=2))

    def test_before_nova_wrote_the_new_flavor(self):
        self.assertEqual(['instance'], self.roles(new_flavor=None))

    def test_confirmed_while_nova_does_not_know_it_yet(self):
        for flavor in (1, 2):
            self.assertEqual(['instance'], self.roles(
                flavor=flavor, assigned=(INSTANCE,)))


class SettleTest(base.BaseTestCase):

    def settle(self, *, status='error', flavor=2, dest='h1',
               vm_state='error', moving=True,
               assigned=(INSTANCE, DESTINATION)):
        """What the tracker is asked to do."""
        self.useFixture(fixtures.MockPatchObject(
            roles, 'migration_of', return_value=types.SimpleNamespace(
                uuid='m1', status=status, source_compute='h1',
                dest_compute=dest)))
        tracker = mock.Mock()
        tracker.assignments.of_instance.return_value = assigned
        roles.settle(tracker, types.SimpleNamespace(
            uuid='i1', vm_state=vm_state,
            migration_context=object() if moving else None,
            flavor=types.SimpleNamespace(id=flavor),
            new_flavor=types.SimpleNamespace(id=2)))
        for _, (_, which), _ in tracker.release_instance.mock_calls:
            return [assignment.uuid for assignment in assigned
                    if which(assignment)]
        for _, (confirmation,), _ in tracker.confirm_migration.mock_calls:
            return confirmation
        return None

    def confirmed(self, *source):
        return claim.MigrationConfirmation(
            instance_uuid='i1', migration_uuid='m1',
            source_assignments=source)

    def test_guest_with_the_destination_s_devices_keeps_them(self):
        self.assertEqual(self.confirmed('a-instance'), self.settle())
        self.assertEqual(self.confirmed('a-instance'),
                         self.settle(dest='h2', flavor=1))
        self.assertEqual(self.confirmed(),
                         self.settle(dest='h2', assigned=(DESTINATION,)))

    def test_guest_with_the_old_flavor_releases_the_destination_s(self):
        self.assertEqual(['a-destination'], self.settle(flavor=1))

    def test_migration_that_is_not_over_is_left_alone(self):
        self.assertIsNone(self.settle(status='finished'))
        self.assertIsNone(self.settle(vm_state='resized'))
        self.assertIsNone(self.settle(moving=False))

    def test_source_of_two_hosts_has_nothing_to_release(self):
        self.assertEqual([], self.settle(dest='h2', assigned=(INSTANCE,)))
