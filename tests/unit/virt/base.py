# SPDX-License-Identifier: Apache-2.0
"""Base classes: a driver of Nova with our mixins, on a fake machine."""

import contextlib
import threading
import types

import fixtures
from nova import exception as nova_exception
from nova.compute import task_states
from nova.compute import vm_states

from gpgpu_plugin.virt import fake
from tests.fixtures import patience
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
            id=1, name='gpu.large', vcpus=1, memory_mb=1, root_gb=1,
            extra_specs={
                'resources:CUSTOM_GPU_H100': str(gpus)} if gpus else {})
        return types.SimpleNamespace(**{
            'uuid': 'i1', 'name': 'guest', 'project_id': 'p', 'user_id': 'u',
            'host': 'h1', 'node': 'h1', 'vm_state': vm_states.ACTIVE,
            'task_state': None, 'deleted': False, 'hidden': False,
            'flavor': flavor, 'new_flavor': None,
            'numa_topology': None, 'migration_context': None, **kwargs})

    def spawn(self, gpus=2, **kwargs):
        """Return an instance as Nova has it after a build."""
        instance = self.make_instance(
            gpus, vm_state=vm_states.BUILDING, **kwargs)
        allocated = self.request(gpus, instance.uuid).allocated
        self.driver.spawn(
            None, instance, None, [], None, {
                provider: {'resources': resources}
                for provider, resources in allocated.items()})
        instance.vm_state = vm_states.ACTIVE
        return instance


class MeetingCase(DriverTestCase):
    """Delete that races another call of the driver for its instance.

    :ivar calls: calls of Nova's driver, in the order of their ends
    """

    def setUp(self):
        super().setUp()
        self.calls = []
        self.errors = []
        self.threads = []
        for method in ('destroy', 'power_on', 'finish_migration',
                       'finish_revert_migration',
                       'migrate_disk_and_power_off'):
            self.watch(method)

    def watch(self, method):
        self.useFixture(fixtures.MockPatch(
            f'nova.virt.fake.FakeDriver.{method}',
            lambda *args, **kwargs: self.called(method)))

    def called(self, method):
        self.calls.append(method)
        if method == 'destroy':
            self.driver.instances.clear()

    @contextlib.contextmanager
    def paused(self, method):
        """Stop Nova's method in the middle of the first call in a thread."""
        entered, leave = threading.Event(), threading.Event()

        def pause(*args, **kwargs):
            entered.set()
            leave.wait(patience.LONG)
            self.called(method)
        with fixtures.MockPatch(f'nova.virt.fake.FakeDriver.{method}', pause):
            try:
                yield entered
            finally:
                leave.set()
                for thread in self.threads:
                    thread.join(patience.LONG)

    def start(self, call):
        """Call in another thread."""
        def run():
            try:
                call()
            except nova_exception.NovaException as exc:
                self.errors.append(exc)
        thread = threading.Thread(target=run)
        self.threads.append(thread)
        thread.start()
        return thread

    def delete(self):
        # Nova has an object of its own for each call.
        deleted = self.make_instance(
            2, task_state=task_states.DELETING,
            migration_context=self.instance.migration_context)
        self.driver.destroy(None, deleted, None)

    def delete_during(self, method, call):
        """Delete the instance while a method of Nova's driver runs.

        :returns: whether the delete waited for its end
        """
        with self.paused(method) as entered:
            self.enter(entered, self.start(call))
            self.assertTrue(self.meet(self.start(self.delete)))
            waited = self.threads[-1].is_alive()
        self.assertEqual([], self.errors)
        return waited

    def call_during_delete(self, call):
        """Call while Nova destroys the guest for a delete.

        :returns: what the call raised
        """
        with self.paused('destroy') as entered:
            self.enter(entered, self.start(self.delete))
            self.assertTrue(self.meet(self.start(call)))
        return self.errors

    def enter(self, entered, thread):
        patience.wait_until(
            lambda: entered.is_set() or not thread.is_alive())
        self.assertTrue(entered.is_set(), self.errors)

    def meet(self, thread):
        """Wait until a thread waits for the instance's lock, or ended."""
        return patience.wait_until(
            lambda: self.driver._gpu_locks.users('i1') == 2
            or not thread.is_alive())
