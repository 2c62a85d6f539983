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
"""The table of what destroy releases, row by row; everything else keeps."""

import itertools

from nova.compute import task_states
from nova.compute import vm_states
from oslotest import base

from gpgpu_plugin.virt import release

RELEASING_TASKS = {
    'deleting', 'soft-deleting', 'shelving', 'shelving_image_pending_upload',
    'shelving_image_uploading', 'shelving_offloading'}


def names(module):
    return {None} | {
        value for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)}


class ReleaseTest(base.BaseTestCase):

    def releases(self, **kwargs):
        return release.releases(**{
            'vm_state': 'active', 'task_state': None, 'deleted': False,
            'instance_host': 'h1', 'this_host': 'h1', **kwargs})

    def test_every_state(self):
        for vm_state, task_state in itertools.product(
                names(vm_states), names(task_states)):
            expected = (task_state in RELEASING_TASKS
                        or vm_state in ('building', 'soft-delete'))
            self.assertEqual(expected, self.releases(
                vm_state=vm_state, task_state=task_state),
                (vm_state, task_state))

    def test_deleted(self):
        self.assertTrue(self.releases(deleted=True))

    def test_instance_lives_elsewhere(self):
        self.assertTrue(self.releases(instance_host='h2'))
        self.assertFalse(self.releases(instance_host=None))

    def test_reboot_rebuild_and_resize_keep(self):
        for task_state in ('rebooting', 'reboot_started_hard', 'rebuilding',
                           'rebuild_spawning', 'resize_migrating',
                           'resize_finish', 'powering-off'):
            self.assertFalse(self.releases(task_state=task_state))

    def test_own_spawn_undoes_itself(self):
        self.assertFalse(self.releases(
            instance_host='h2', spawning_here=True))
