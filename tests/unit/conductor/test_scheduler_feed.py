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
"""Tests of the changes that schedulers receive."""

from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.objects import admin
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


class UnlistedTest(vgpu_base.VGPUTestCase):
    """Tests of vGPU types that were never enabled."""

    def test_type_that_is_not_listed_is_not_reported_to_schedulers(self):
        hosts.store(self.db, base.scan(
            (base.function(0, device='25b6', driver='nvidia',
                           vgpu_mechanism=capability.VGPUMechanism.MDEV,
                           vgpu_types=vgpu_base.TYPES),), host='h2',
            node_uuid='22222222-2222-2222-2222-222222222222'))
        variant_admin.create(self.db, admin.VariantInfo(
            name='A2', vendor='10de', device='25b6'))
        [info] = [host for host in scheduler_feed.changes_since(
            self.db, 0).hosts if host.host == 'h2']
        self.assertEqual(['CUSTOM_GPU_A2'], [
            offered.resource_class for group in info.groups
            for offered in group.types])


class ChangesTest(base.ConductorTestCase):

    def test_everything_then_what_changed_then_nothing(self):
        hosts.store(self.db, base.scan(
            (), host='h2', node_uuid='22222222-2222-2222-2222-222222222222'))
        first = scheduler_feed.changes_since(self.db, 0)
        self.assertEqual({'h1', 'h2'}, {info.host for info in first.hosts})
        nothing = scheduler_feed.changes_since(self.db, first.generation)
        self.assertEqual((first.generation, ()),
                         (nothing.generation, nothing.hosts))
        self.claim(2)
        second = scheduler_feed.changes_since(self.db, first.generation)
        [host] = second.hosts
        self.assertEqual(6, host.groups[0].types[0].free.bit_count())
        self.assertEqual({'available': 6, 'provisioning': 2},
                         host.groups[0].states)

    def test_each_step_of_an_assignments_life_is_a_change(self):
        known = scheduler_feed.changes_since(self.db, 0)
        generation = known.hosts[0].generation

        def check_changed(state):
            nonlocal known, generation
            known = scheduler_feed.changes_since(self.db, known.generation)
            [host] = known.hosts
            self.assertGreater(host.generation, generation)
            generation = host.generation
            self.assertEqual(
                {'available': 7, state: 1} if state != 'available'
                else {'available': 8}, host.groups[0].states)
        uuids = base.uuids(self.claim(1))
        check_changed('provisioning')
        claims.activate(self.db, uuids)
        check_changed('assigned')
        releases.release(self.db, uuids)
        check_changed('dirty')
        for passed, state in ((False, 'quarantined'), (True, 'available')):
            [task] = cleaning.tasks(self.db, 'h1')
            cleaning.started(
                self.db, task.device_uuid, task.token, task.token)
            check_changed('cleaning')
            cleaning.finished(self.db, task.device_uuid, task.token,
                              passed=passed, evidence='')
            check_changed(state)
            if not passed:
                cleaning.operator_release(self.db, task.device_uuid)
                check_changed('dirty')

    def test_deleted_host_is_reported(self):
        before = scheduler_feed.changes_since(self.db, 0).generation
        host_admin.delete(self.db, 'h1')
        [host] = scheduler_feed.changes_since(self.db, before).hosts
        self.assertTrue(host.deleted)


class TopologyTest(vgpu_base.VGPUTestCase):

    def test_gpu_below_no_switch_is_named_while_it_is_free(self):
        [host] = scheduler_feed.changes_since(self.db, 0).hosts
        self.assertEqual(((), (1, 2)), (
            host.groups[0].switches, host.groups[0].alone))
        self.ask(whole=1)
        [host] = scheduler_feed.changes_since(self.db, 0).hosts
        self.assertEqual((2,), host.groups[0].alone)
