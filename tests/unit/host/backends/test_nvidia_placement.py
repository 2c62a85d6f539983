# SPDX-License-Identifier: Apache-2.0
"""Tests of placements in NVIDIA's mixed-size mode, on the fake kernel."""

import dataclasses
import os

import fixtures
import hypothesis
from hypothesis import strategies as st

from gpgpu_plugin import exception
from gpgpu_plugin import privsep
from gpgpu_plugin.domain import vgpu as vgpu_rules
from tests.fixtures import examples
from tests.unit.host import vgpu_base

_SIZES = ('4C', '8C', '10C', '16C', '20C', '40C', '80C')


class PlacementCase(vgpu_base.VFCase):
    """The first of two GPUs; each of its vGPUs is on a VF of its own."""

    def setUp(self):
        super().setUp()
        self.gpu = next(
            gpu for gpu in self.functions() if gpu.pf is None)
        self.host.kernel.enable_mixed_size(self.gpu.address)
        self.vfs = [vf for vf in self.functions()
                    if vf.pf == self.gpu.id]

    def device(self, number, name, placement):
        return super().device(number, vgpu_type=name, placement_id=placement)

    def placement(self, device):
        return self.read(self.path(device))


class MdevTest(PlacementCase):

    machine = 'nvidia-a100-2'
    numvfs = {'10de:20b5': 20}.items()

    @staticmethod
    def path(device):
        return f'bus/mdev/devices/{device.assignment_uuid}/nvidia/placement_id'

    def test_placement_is_written_once(self):
        device = self.device(0, 'A100D-20C', 40)
        self.twice(self.host.prepare, device)
        self.assertEqual('40', self.placement(device))
        self.assertEqual(1, self.host.kernel.written.count(
            self.path(device)))

    def test_placement_is_written_after_crash_before_it(self):
        device = self.device(0, 'A100D-20C', 40)
        self.host.prepare(dataclasses.replace(device, placement_id=None))
        self.assertEqual('Not Applicable', self.placement(device))
        self.host.prepare(device)
        self.assertEqual('40', self.placement(device))

    def test_device_without_placement_writes_none(self):
        # Other mix policies have no placements; the driver chooses one.
        device = self.device(0, 'A100D-20C', None)
        self.host.prepare(device)
        self.assertNotIn(self.path(device), self.host.kernel.written)

    def test_driver_without_placements_is_logged(self):
        device = self.device(0, 'A100D-20C', 40)
        self.host.prepare(dataclasses.replace(device, placement_id=None))
        os.unlink(f'{self.root}/{self.path(device)}')
        log = self.useFixture(fixtures.FakeLogger())
        self.host.prepare(device)
        self.assertIn('so placement 40 of the vGPU cannot be set',
                      log.output)

    def test_refused_placement_is_an_error(self):
        for placement in (10, 80):
            device = self.device(0, 'A100D-20C', placement)
            self.refused(self.host.prepare, device, 'placement_id',
                         f"cannot write '{placement}'")
            self.host.release(device)

    def test_helper_that_dies_before_it_leaves_a_half_prepared_device(self):
        device = self.device(0, 'A100D-20C', 40)
        write = self.host.binder._write_attribute

        def die(path, value):
            if path.endswith('placement_id'):
                raise privsep.HelperUnavailable(5, 'no helper')
            write(path, value)
        self.useFixture(fixtures.MockPatchObject(
            self.host.binder, '_write_attribute', die))
        self.assertRaises(exception.HalfPrepared, self.host.prepare, device)
        self.assertEqual('Not Applicable', self.placement(device))

    def test_other_placement_than_written_is_an_error(self):
        device = self.device(0, 'A100D-20C', 40)
        self.host.prepare(dataclasses.replace(device, placement_id=60))
        self.host.kernel.ignored.add('placement_id')
        self.refused(self.host.prepare, device, device.address,
                     'is at placement 60 after 40')

    def test_driver_chooses_another_placement_than_the_conductor(self):
        self.host.prepare(self.device(0, 'A100D-4C', None))
        # The driver chose 76; the conductor would choose 0.
        self.host.prepare(self.device(1, 'A100D-40C', 0))
        self.refused(self.host.prepare, self.device(2, 'A100D-40C', 40),
                     'no more')

    @hypothesis.settings(max_examples=examples.count(25), deadline=None,
                         derandomize=True)
    @hypothesis.given(st.lists(st.one_of(
        st.sampled_from(_SIZES), st.integers(0, 19)), max_size=25))
    def test_driver_accepts_every_calculated_placement(self, steps):
        gpu = vgpu_rules.GPUCapacity(
            id='gpu',
            offered=True,
            mix_policy=vgpu_rules.VGPUMixPolicy.MIXED_SIZE,
            types={listed.name: listed for listed in self.gpu.vgpu_types},
        )
        made = []
        try:
            for step in steps:
                if isinstance(step, str):
                    self.make(gpu, f'A100D-{step}', made)
                elif made:
                    self.host.release(made.pop(step % len(made)))
                gpu = dataclasses.replace(gpu, vgpus=tuple(
                    vgpu_rules.VGPU(vgpu_type=device.vgpu_type,
                                    placement_id=device.placement_id)
                    for device in made))
        finally:
            for device in made:
                self.host.release(device)

    def make(self, gpu, name, made):
        """Create a vGPU if it fits; the driver agrees whether it does."""
        free = {vf.id for vf in self.vfs} - {
            device.stable_id for device in made}
        number = next(number for number, vf in enumerate(self.vfs)
                      if vf.id in free)
        if gpu.available(name):
            vgpu = gpu.with_vgpu(name).vgpus[-1]
            made.append(self.device(number, name, vgpu.placement_id))
            self.host.prepare(made[-1])
        else:
            self.assertRaises(exception.NoDriverCapacity, self.host.prepare,
                              self.device(number, name, None))


class NvidiaVFTest(PlacementCase):

    machine = 'nvidia-l40s-vgpu-2'
    numvfs = {'10de:26b9': 32}.items()

    @staticmethod
    def path(device):
        return f'bus/pci/devices/{device.address}/nvidia/placement_id'

    def test_placement_is_written_once_and_goes_with_the_type(self):
        device = self.device(0, 'L40S-8Q', 16)
        self.twice(self.host.prepare, device)
        self.assertEqual('16', self.placement(device))
        self.assertEqual(1, self.host.kernel.written.count(
            self.path(device)))
        self.assertTrue(self.host.clean(device).passed)
        self.assertEqual('Not Applicable', self.placement(device))

    def test_placement_is_written_after_crash_before_it(self):
        device = self.device(0, 'L40S-8Q', 16)
        self.host.prepare(dataclasses.replace(device, placement_id=None))
        self.host.prepare(device)
        self.assertEqual('16', self.placement(device))

    def test_refused_placement_is_an_error(self):
        first = self.device(0, 'L40S-8Q', 16)
        self.host.prepare(first)
        device = self.device(1, 'L40S-24Q', 0)
        self.refused(self.host.prepare, device, 'placement_id',
                     "cannot write '0'")
        # It has a type, and is cleaned like any other VF.
        self.assertTrue(self.host.clean(device).passed)
        self.assertEqual(
            vgpu_rules.VGPUMechanism.VF, self.functions()[0].vgpu_mechanism
        )
