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
"""Who is dead, row by row; in doubt nobody."""

import types
from unittest import mock

from nova import exception as nova_exception
from nova import objects
from oslotest import base

from gpgpu_plugin.objects import claim
from gpgpu_plugin.virt import orphans


def assignment(state='assigned', role=claim.ClaimRole.INSTANCE,
               migration_uuid=None):
    return claim.Assignment(
        uuid='a1', instance_uuid='i1', host='h1', role=role,
        migration_uuid=migration_uuid,
        device_uuid='d1', stable_id='/devices/x', address='0000:01:00.0',
        variant='H100', resource_class='CUSTOM_GPU_H100', state=state)


class LivenessTest(base.BaseTestCase):

    def is_orphaned(self, assignment, instance=None, guests=()):
        answer = {'side_effect': nova_exception.InstanceNotFound(
            instance_id='i1')}
        if instance is not None:
            answer = {'return_value': types.SimpleNamespace(**{
                'deleted': False, 'task_state': None, **instance})}
        with mock.patch.object(
                objects.Instance, 'get_by_uuid', **answer):
            return orphans.is_orphaned(assignment, lambda: guests)

    def test_assigned_lives_as_long_as_the_instance(self):
        self.assertFalse(self.is_orphaned(assignment(), {}))
        self.assertTrue(self.is_orphaned(assignment(), {'deleted': True}))
        self.assertTrue(self.is_orphaned(assignment()))

    def test_guest_that_is_still_there_uses_it(self):
        for state in ('assigned', 'provisioning'):
            self.assertFalse(self.is_orphaned(
                assignment(state), {'deleted': True}, guests={'i1'}))

    def test_claim_of_a_build_that_is_no_more(self):
        self.assertTrue(self.is_orphaned(
            assignment('provisioning'), {'task_state': 'spawning'}))

    def test_claim_of_a_migration_is_waited_for(self):
        claimed = assignment(
            'provisioning', claim.ClaimRole.DESTINATION, 'migration-1')
        for task in ('resize_prep', 'resize_migrating', 'resize_migrated',
                     'resize_finish'):
            self.assertFalse(self.is_orphaned(claimed, {'task_state': task}))
        for task in (None, 'deleting', 'rebooting', 'resize_reverting'):
            self.assertTrue(self.is_orphaned(claimed, {'task_state': task}))
        self.assertTrue(self.is_orphaned(claimed))

    def test_hypervisor_that_cannot_be_asked(self):
        def away():
            raise RuntimeError('no connection')
        self.assertRaises(
            RuntimeError, orphans.is_orphaned, assignment(), away)
