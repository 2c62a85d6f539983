# SPDX-License-Identifier: Apache-2.0

import types

import fixtures
from nova.compute import task_states
from oslotest import base as oslotest_base

from gpgpu_plugin import context
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import leftovers
from gpgpu_plugin.objects import inventory
from gpgpu_plugin.virt import exception as virt_exception
from gpgpu_plugin.virt import requested_devices
from tests.unit.compute import make
from tests.unit.virt import base

STARTS = (('power_on', (None,)), ('reboot', (None, 'HARD')),
          ('resume_state_on_host_boot', (None,)), ('rescue', ()),
          ('unrescue', ()))


class FlavorTest(oslotest_base.BaseTestCase):

    def test_extra_specs_that_cannot_be_read_may_mean_gpus(self):
        for specs, asks in (({}, False),
                            ({'resources:CUSTOM_GPU_H100': '1'}, True),
                            ({'gpgpu:topology': 'same_rack'}, True)):
            self.assertIs(asks, requested_devices.asks_for_gpus(
                types.SimpleNamespace(extra_specs=specs)))


class HasGPUsTest(base.DriverTestCase):

    def of(self, **extra_specs):
        instance = self.make_instance(0)
        instance.flavor.extra_specs.update({
            f'resources:{name}': '1' for name in extra_specs})
        return requested_devices.has_gpus(self.tracker, instance)

    def test_classes_of_the_host_and_of_the_plugin_are_gpus(self):
        self.assertTrue(self.of(CUSTOM_GPU_H100=1))
        self.assertTrue(self.of(CUSTOM_VGPU_T4_T4_4Q=1))

    def test_devices_of_other_services_are_not(self):
        self.assertFalse(self.of(CUSTOM_FPGA=1, VGPU=1))
        self.assertFalse(self.of())

    def test_unknown_classes_may_be_until_the_host_knows_its_own(self):
        self.tracker.inventory._newest = None
        self.assertTrue(self.of(CUSTOM_FPGA=1))
        self.assertFalse(self.of())

    def test_instance_with_devices_has_gpus_whatever_its_flavor(self):
        self.spawn(1)
        self.assertTrue(self.of())

    def test_guest_with_a_device_of_another_service_is_suspended(self):
        instance = self.make_instance(0)
        instance.flavor.extra_specs['resources:CUSTOM_FPGA'] = '1'
        self.driver.suspend(None, instance)
        self.assertEqual('x', self.driver.check_can_live_migrate_source(
            None, instance, 'x'))


class StartCase(base.DriverTestCase):
    """Base class of tests of guests that lack devices in the host's book."""

    def setUp(self):
        super().setUp()
        self.instance = self.spawn(2)
        self.started = []
        self.log = self.useFixture(fixtures.FakeLogger('gpgpu_plugin'))
        for method, _ in STARTS:
            self.useFixture(fixtures.MockPatch(
                f'nova.virt.fake.FakeDriver.{method}', self.attach))
        self.brought_by()

    def attach(self, *args, **kwargs):
        self.started.append([
            attachment.functions[0] for attachment
            in self.driver.gpu_attachments(self.instance)])

    def brought_by(self, **kwargs):
        """Have the instance brought here by a migration, or by none."""
        self.location = self.useFixture(fixtures.MockPatchObject(
            leftovers, 'location', return_value=assignment_use.Location(
                host='h1', flavor=1, migrations=(assignment_use.Migration(**{
                    'uuid': 'm1', 'status': 'error', 'source': 'h2',
                    'dest': 'h1', **kwargs}),) if kwargs else ()))).mock

    def lose(self, count=2):
        """Remove devices of the instance from the book."""
        book = self.tracker.assignments
        assigned = book.of_instance('i1')
        # As when the file was lost, nothing is known of them.
        uuids = [assignment.uuid for assignment in assigned[:count]]
        book.remove('i1', uuids, untouched=uuids)
        return sorted(assignment.address for assignment in assigned)

    def start(self, method='power_on', args=(None,)):
        getattr(self.driver, method)(None, self.instance, *args)

    def refused(self, method='power_on', args=(None,)):
        """Return why the guest is not started, as administrators read it."""
        exc = self.assertRaises(
            virt_exception.GPUOperationFailed, self.start, method, args)
        self.assertEqual([], self.started)
        cause = exc.__cause__
        self.assertIsInstance(cause, virt_exception.GPUsMissing)
        self.assertIn(str(cause), self.log.output)
        self.assertIn(cause.kwargs['remedy'], str(exc))
        return str(cause)


class MissingTest(StartCase):

    def test_guest_is_refused_until_a_comparison_knows_its_devices(self):
        for method, args in STARTS:
            for count in (1, 2):
                self.started = []
                expected = self.lose(count)
                self.assertIn(f'lacks {count} of CUSTOM_GPU_H100',
                              self.refused(method, args))
                self.tracker.run_once()
                self.start(method, args)
                self.assertEqual([expected], [
                    sorted(addresses) for addresses in self.started], method)

    def test_devices_that_were_lost_are_made_ready(self):
        for address in self.lose():
            self.tracker.backend.kernel.write(
                'bus/pci/drivers/vfio-pci/unbind', address)
        self.refused()
        self.tracker.run_once()
        self.start()
        self.assertIn('vfio-pci', self.drivers())

    def test_complete_book_makes_no_call(self):
        self.conductor.stop()
        self.start()
        self.assertFalse(self.location.called)

    def test_guest_without_gpus_makes_no_call(self):
        self.lose()
        self.conductor.stop()
        self.instance.flavor = self.make_instance(0).flavor
        self.start()
        self.assertFalse(self.location.called)

    def test_guest_is_refused_whose_devices_have_ended(self):
        self.tracker.session.call(self.api.release, [
            assignment.uuid for assignment
            in self.tracker.assignments.of_instance('i1')])
        self.lose()
        for _ in range(2):
            self.assertIn('unshelve', self.refused())
            self.tracker.run_once()

    def test_pending_release_is_not_taken_back(self):
        book = self.tracker.assignments
        book.add_pending([book.of_instance('i1')[0].uuid])
        self.lose()
        self.refused()
        self.tracker.run_once()
        self.assertIn('lacks 1 of CUSTOM_GPU_H100', self.refused())


class DemandTest(StartCase):
    """Tests of which classes of a flavor are the plugin's."""

    def setUp(self):
        super().setUp()
        self.lose()
        self.useFixture(fixtures.MockPatchObject(
            self.api, 'host_assignments', return_value=()))

    def ask_for(self, resource_class):
        self.instance.flavor.extra_specs = {
            f'resources:{resource_class}': '1'}
        self.tracker.inventory._newest = make.host_inventory(
            inventory.GroupInventory(
                variant='v', provider_name='p', provider_uuid='p', traits=(),
                types=(inventory.TypeInventory(
                    resource_class='PGPU', total=1, reserved=0,
                    max_unit=1),)))

    def test_class_of_a_group_of_this_host_is_ours(self):
        self.ask_for('PGPU')
        self.assertIn('lacks 1 of PGPU', self.refused())

    def test_class_that_only_the_plugin_uses_is_ours(self):
        self.ask_for('CUSTOM_VGPU_GONE')
        self.tracker.inventory._newest = None
        self.assertIn('lacks 1 of CUSTOM_VGPU_GONE', self.refused())

    def test_class_of_another_service_is_not_ours(self):
        self.ask_for('CUSTOM_FPGA')
        self.start()
        self.assertEqual([[]], self.started)

    def test_flavor_that_cannot_be_read_requests_nothing(self):
        self.instance.flavor.extra_specs = {'gpgpu:topology': 'same_rack'}
        self.start()
        self.assertEqual([[]], self.started)


class FailedFinishTest(StartCase):
    """Tests after a resize failed here, and Nova took the old flavor back."""

    def setUp(self):
        super().setUp()
        self.brought_by(new_flavor=2)

    def resized_to(self, gpus):
        self.instance.new_flavor = self.make_instance(gpus).flavor
        self.instance.new_flavor.id = 2

    def test_guest_keeps_what_was_claimed_for_the_new_flavor(self):
        self.lose(1)
        self.resized_to(1)
        self.conductor.stop()
        self.start()
        self.assertEqual([1], list(map(len, self.started)))

    def test_guest_of_a_new_flavor_without_gpus_starts_without(self):
        self.lose()
        self.resized_to(0)
        self.start()
        self.assertEqual([[]], self.started)

    def test_guest_without_the_new_flavor_s_devices_is_refused(self):
        self.lose(1)
        self.tracker.session.call(self.api.release, [
            assignment.uuid for assignment in
            self.api.instance_assignments(
                    context.admin(), 'i1')])
        self.lose()
        self.resized_to(1)
        self.assertIn('lacks 1 of CUSTOM_GPU_H100', self.refused())

    def test_guest_of_an_unknown_flavor_needs_some_device(self):
        # Unshelved here after an older move to this host.
        self.brought_by(status='confirmed', new_flavor=7)
        self.lose(1)
        self.start()
        self.assertEqual([1], list(map(len, self.started)))
        self.started = []
        self.lose()
        self.assertIn('lacks its GPUs', self.refused())


class RebuildTest(StartCase):

    def rebuild(self):
        self.instance.task_state = task_states.REBUILD_SPAWNING
        self.driver.spawn(
            None, self.instance, None, [], None,
            {self.provider: {'resources': {'CUSTOM_GPU_H100': 2}}})

    def test_rebuild_with_an_empty_book_keeps_its_devices(self):
        expected = self.lose()
        self.rebuild()
        self.assertEqual(expected, sorted(
            assignment.address for assignment
            in self.tracker.assignments.of_instance('i1')))
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())

    def test_rebuild_with_a_part_of_its_devices_is_refused(self):
        [first, _] = self.tracker.assignments.of_instance('i1')
        self.tracker.session.call(self.api.release, [first.uuid])
        self.lose(1)
        self.assertRaises(virt_exception.GPUOperationFailed, self.rebuild)

    def test_rebuild_claims_if_nobody_knows_of_devices(self):
        self.tracker.session.call(self.api.release, [
            assignment.uuid for assignment
            in self.tracker.assignments.of_instance('i1')])
        self.lose()
        self.rebuild()
        self.assertEqual(
            2, len(self.tracker.assignments.of_instance('i1')))
