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
"""Tests of each row of the table of what destroy releases."""

import itertools

from nova.compute import task_states
from nova.compute import vm_states
from oslotest import base

from gpgpu_plugin.virt import release

RELEASING_TASKS = {
    'deleting', 'soft-deleting', 'shelving', 'shelving_image_pending_upload',
    'shelving_image_uploading', 'shelving_offloading'}
NOTHING, DESTINATION, ALL = (
    release.Release.NOTHING, release.Release.DESTINATION, release.Release.ALL)


def names(module):
    return {None} | {
        value for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)}


class ReleaseTest(base.BaseTestCase):

    def released(self, **kwargs):
        return release.on_destroy(**{
            'vm_state': 'active', 'task_state': None, 'deleted': False,
            'instance_host': 'h1', 'this_host': 'h1',
            'may_be_evacuating': lambda: False, **kwargs})

    def test_every_state(self):
        for vm_state, task_state in itertools.product(
                names(vm_states), names(task_states)):
            expected = NOTHING
            if vm_state in ('building', 'soft-delete') or (
                    task_state is None and vm_state != 'resized'):
                expected = ALL
            if task_state == 'resize_reverting':
                expected = DESTINATION
            if task_state in RELEASING_TASKS:
                expected = ALL
            self.assertEqual(expected, self.released(
                vm_state=vm_state, task_state=task_state),
                (vm_state, task_state))

    def test_deleted(self):
        self.assertEqual(ALL, self.released(deleted=True))

    def test_delete_of_a_resized_server(self):
        # Nova confirms it first, and has forgotten its task then.
        self.assertEqual(ALL, self.released())

    def test_source_of_an_evacuation_keeps_what_it_may_need(self):
        self.assertEqual(NOTHING, self.released(
            may_be_evacuating=lambda: True))
        for state in ({'instance_host': 'h2'}, {'task_state': 'deleting'}):
            self.assertEqual(ALL, self.released(
                may_be_evacuating=self.fail, **state))

    def test_instance_lives_elsewhere(self):
        self.assertEqual(ALL, self.released(instance_host='h2'))
        self.assertEqual(NOTHING, self.released(instance_host=None))

    def test_source_waits_for_the_decision(self):
        self.assertEqual(NOTHING, self.released(
            instance_host='h2', vm_state='resized'))

    def test_destination_goes_when_it_is_reverted(self):
        for host in ('h1', 'h2'):
            self.assertEqual(DESTINATION, self.released(
                task_state='resize_reverting', vm_state='resized',
                this_host=host))

    def test_reboot_rebuild_and_resize_keep(self):
        for task_state in ('rebooting', 'reboot_started_hard', 'rebuilding',
                           'rebuild_spawning', 'resize_migrating',
                           'resize_finish', 'powering-off'):
            self.assertEqual(NOTHING, self.released(task_state=task_state))
