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
"""vGPUs in NVIDIA's mixed-size mode: at the places that were reckoned."""

import dataclasses
import os

import fixtures
import hypothesis
from hypothesis import strategies as st

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.vgpu import capacity
from tests.unit.host import vgpu_base

_SIZES = ('4C', '8C', '10C', '16C', '20C', '40C', '80C')


class PlacingCase(vgpu_base.VFCase):
    """The first of two cards; each of its vGPUs has a VF of its own."""

    def setUp(self):
        super().setUp()
        self.card = next(
            each for each in self.functions() if each.pf is None)
        self.host.kernel.mixed_size(self.card.address)
        self.vfs = [each for each in self.functions()
                    if each.pf == self.card.id]

    def device(self, number, name, placement):
        return super().device(number, vgpu_type=name, placement_id=placement)

    def place(self, device):
        return self.read(self.path(device))


class MdevTest(PlacingCase):

    machine = 'nvidia-a100-2'
    numvfs = {'10de:20b5': 20}.items()

    @staticmethod
    def path(device):
        return f'bus/mdev/devices/{device.assignment_uuid}/nvidia/placement_id'

    def test_written_once(self):
        device = self.device(0, 'A100D-20C', 40)
        self.twice(self.host.prepare, device)
        self.assertEqual('40', self.place(device))
        self.assertEqual(1, self.host.kernel.written.count(
            self.path(device)))

    def test_written_after_a_crash_before_it(self):
        device = self.device(0, 'A100D-20C', 40)
        self.host.prepare(dataclasses.replace(device, placement_id=None))
        self.assertEqual('Not Applicable', self.place(device))
        self.host.prepare(device)
        self.assertEqual('40', self.place(device))

    def test_nobody_says_where(self):
        # Other rules do not know places; the driver takes its own.
        device = self.device(0, 'A100D-20C', None)
        self.host.prepare(device)
        self.assertNotIn(self.path(device), self.host.kernel.written)

    def test_driver_that_cannot_be_told(self):
        device = self.device(0, 'A100D-20C', 40)
        self.host.prepare(dataclasses.replace(device, placement_id=None))
        os.unlink(f'{self.root}/{self.path(device)}')
        log = self.useFixture(fixtures.FakeLogger())
        self.host.prepare(device)
        self.assertIn('cannot be told that the vGPU is to be at 40',
                      log.output)

    def test_driver_that_refuses(self):
        for placement in (10, 80):
            device = self.device(0, 'A100D-20C', placement)
            self.refused(self.host.prepare, device, 'placement_id',
                         f"cannot write '{placement}'")
            self.host.release(device)

    def test_driver_that_has_it_somewhere_else(self):
        device = self.device(0, 'A100D-20C', 40)
        self.host.prepare(dataclasses.replace(device, placement_id=60))
        self.host.kernel.ignored.add('placement_id')
        self.refused(self.host.prepare, device, 'is at 60 after 40')

    def test_without_it_the_driver_takes_another_place(self):
        self.host.prepare(self.device(0, 'A100D-4C', None))
        # It is at 76; the conductor would have it at 0.
        self.host.prepare(self.device(1, 'A100D-40C', 0))
        self.refused(self.host.prepare, self.device(2, 'A100D-40C', 40),
                     'no room')

    @hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
    @hypothesis.given(st.lists(st.one_of(
        st.sampled_from(_SIZES), st.integers(0, 19)), max_size=25))
    def test_what_is_reckoned_is_what_the_driver_does(self, steps):
        card = capacity.GPUCapacity(
            id='card',
            offered=True,
            mix_policy=capacity.VGPUMixPolicy.MIXED_SIZE,
            types={each.name: each for each in self.card.vgpu_types},
        )
        made = []
        try:
            for step in steps:
                if isinstance(step, str):
                    self.make(card, f'A100D-{step}', made)
                elif made:
                    self.host.release(made.pop(step % len(made)))
                card = dataclasses.replace(card, vgpus=tuple(
                    capacity.VGPU(vgpu_type=each.vgpu_type,
                                 placement_id=each.placement_id)
                    for each in made))
        finally:
            for each in made:
                self.host.release(each)

    def make(self, card, name, made):
        """One more, if there is room for it; the driver thinks the same."""
        free = {each.id for each in self.vfs} - {
            each.stable_id for each in made}
        number = next(number for number, vf in enumerate(self.vfs)
                      if vf.id in free)
        if card.available(name):
            unit = card.with_vgpu(name).vgpus[-1]
            made.append(self.device(number, name, unit.placement_id))
            self.host.prepare(made[-1])
        else:
            self.assertRaises(exception.NoDriverCapacity, self.host.prepare,
                              self.device(number, name, None))


class NvidiaVFTest(PlacingCase):

    machine = 'nvidia-l40s-vgpu-2'
    numvfs = {'10de:26b9': 32}.items()

    @staticmethod
    def path(device):
        return f'bus/pci/devices/{device.address}/nvidia/placement_id'

    def test_written_once_and_gone_with_the_type(self):
        device = self.device(0, 'L40S-8Q', 16)
        self.twice(self.host.prepare, device)
        self.assertEqual('16', self.place(device))
        self.assertEqual(1, self.host.kernel.written.count(
            self.path(device)))
        self.assertTrue(self.host.clean(device).passed)
        self.assertEqual('Not Applicable', self.place(device))

    def test_written_after_a_crash_before_it(self):
        device = self.device(0, 'L40S-8Q', 16)
        self.host.prepare(dataclasses.replace(device, placement_id=None))
        self.host.prepare(device)
        self.assertEqual('16', self.place(device))

    def test_driver_that_refuses(self):
        first = self.device(0, 'L40S-8Q', 16)
        self.host.prepare(first)
        device = self.device(1, 'L40S-24Q', 0)
        self.refused(self.host.prepare, device, 'placement_id',
                     "cannot write '0'")
        # It has a type, and is cleaned like any other.
        self.assertTrue(self.host.clean(device).passed)
        self.assertEqual(
            pci.VGPUMechanism.VF, self.functions()[0].vgpu_mechanism
        )
