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
"""A driver of Nova with our mixins, and a host with a fake machine."""

import types

from nova.compute import vm_states

from gpgpu_plugin.virt import fake
from tests.unit.compute import base


class DriverTestCase(base.ComputeTestCase):

    def setUp(self):
        super().setUp()
        self.driver = fake.GpuFakeDriver(
            types.SimpleNamespace(
                reportclient=self.client, _compute=types.SimpleNamespace(
                    rt=types.SimpleNamespace(compute_nodes={}))))
        self.driver._gpu_tracker = self.tracker

    def make_instance(self, gpus=2, **kwargs):
        flavor = types.SimpleNamespace(
            id=1, vcpus=1, memory_mb=1, root_gb=1, extra_specs={
                'resources:CUSTOM_GPU_H100': str(gpus)} if gpus else {})
        return types.SimpleNamespace(**{
            'uuid': 'i1', 'name': 'guest', 'project_id': 'p', 'user_id': 'u',
            'host': 'h1', 'node': 'h1', 'vm_state': vm_states.ACTIVE,
            'task_state': None, 'deleted': False,
            'flavor': flavor, 'new_flavor': None,
            'numa_topology': None, 'migration_context': None, **kwargs})

    def spawn(self, gpus=2, **kwargs):
        """An instance as Nova has it after a build."""
        instance = self.make_instance(
            gpus, vm_state=vm_states.BUILDING, **kwargs)
        allocated = self.request(gpus, instance.uuid).allocated
        self.driver.spawn(
            None, instance, None, [], None, {
                provider: {'resources': resources}
                for provider, resources in allocated.items()})
        instance.vm_state = vm_states.ACTIVE
        return instance
