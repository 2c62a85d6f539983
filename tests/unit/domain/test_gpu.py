# SPDX-License-Identifier: Apache-2.0
"""Tests of the functions of one GPU, and of refusals to assign it."""

from oslotest import base

from gpgpu_plugin.domain import gpu
from gpgpu_plugin.domain import pci

GPU, AUDIO, DISK, BRIDGE = '030200', '040300', '010802', '060400'
USB, ENCRYPTION = '0c0330', '108000'
HOST_BRIDGE, ISA_BRIDGE, NVSWITCH = '060000', '060100', '068000'


def function(address, class_code=GPU, group=None, **facts):
    return pci.PCIFunction(
        id=f'/devices/{address}', address=f'0000:{address}',
        class_code=class_code, iommu_group=group, **facts)


class RelateTest(base.BaseTestCase):

    def relate(self, *functions):
        return {found.address[5:]: found for found in gpu.relate(functions)}

    def companions(self, *functions):
        return {address: tuple(companion[5:]
                               for companion in related.companions)
                for address, related in self.relate(*functions).items()
                if related.companions}

    def test_sound_goes_with_its_gpu(self):
        for groups in ((1, 1), (1, 2), (None, None)):
            related = self.relate(function('21:00.0', GPU, groups[0]),
                                  function('21:00.1', AUDIO, groups[1]),
                                  function('22:00.0', GPU, 3))
            self.assertEqual(('0000:21:00.1',),
                             related['21:00.0'].companions)
            self.assertEqual('0000:21:00.0', related['21:00.1'].part_of)
            self.assertEqual((), related['21:00.0'].iommu_foreign_members)
            self.assertIsNone(related['22:00.0'].part_of)

    def test_two_gpus_of_a_slot(self):
        both = (function('21:00.0', GPU, 1), function('21:00.2', AUDIO, 1))
        self.assertEqual(
            {'21:00.0': ('21:00.2',)},
            self.companions(both[0], function('21:00.1', GPU, 2), both[1]))
        # One group goes to one guest.
        self.assertEqual(
            {'21:00.0': ('21:00.1', '21:00.2')},
            self.companions(both[0], function('21:00.1', GPU, 1), both[1]))

    def test_gpu_that_is_not_first_in_its_slot(self):
        self.assertEqual({'21:00.1': ('21:00.0',)}, self.companions(
            function('21:00.0', AUDIO, 1), function('21:00.1', GPU, 1)))

    def test_functions_of_the_processor_stay_with_the_host(self):
        for group, goes in ((1, True), (None, True), (2, False)):
            for class_code in (USB, ENCRYPTION):
                related = self.relate(
                    function('c6:00.0', GPU, 1),
                    function('c6:00.1', AUDIO, 3),
                    function('c6:00.2', class_code, group))
                self.assertEqual(
                    ('0000:c6:00.1', *(['0000:c6:00.2'] if goes else [])),
                    related['c6:00.0'].companions)
                self.assertEqual('0000:c6:00.0' if goes else None,
                                 related['c6:00.2'].part_of)

    def test_card_without_a_gpu_is_a_card_whatever_its_groups(self):
        self.assertEqual({'21:00.0': ('21:00.1',)}, self.companions(
            function('21:00.0', NVSWITCH, 1), function('21:00.1', USB, 2)))

    def test_vf_is_a_gpu_of_its_own(self):
        related = self.relate(
            function('21:00.0', GPU, 1),
            function('21:00.1', GPU, 2, pf='/devices/21:00.0', vf_index=0))
        for found in related.values():
            self.assertEqual(((), None), (found.companions, found.part_of))

    def test_iommu_group_member_of_another_device_is_foreign(self):
        # A class that cannot be read may be anything.
        for class_code, foreign in ((DISK, True), (None, True),
                                    (GPU, True), (NVSWITCH, True),
                                    (ISA_BRIDGE, True), (BRIDGE, False),
                                    (HOST_BRIDGE, False)):
            related = self.relate(
                function('20:01.0', BRIDGE, 1), function('21:00.0', GPU, 2),
                function('21:00.1', AUDIO, 1),
                function('22:00.0', class_code, 1))
            self.assertEqual(
                ('0000:22:00.0',) if foreign else (),
                related['21:00.0'].iommu_foreign_members,
                class_code,
            )

    def test_unreadable_function_is_left_out(self):
        self.assertEqual([], gpu.relate([None]))


class UnassignableReasonTest(base.BaseTestCase):

    def test_unassignable_function_has_a_reason(self):
        for facts, words in (
                ({'fault': 'it is dead'}, 'it is dead'),
                ({'used_by': 'boot_vga'}, 'booted with'),
                ({'owner': 'Nova (an option)'}, 'managed by Nova (an option)'),
                ({'part_of': '0000:21:00.0'}, 'together with 0000:21:00.0'),
                ({'iommu_foreign_members': ('0000:22:00.0',), 'group': 7},
                 'IOMMU group 7 also contains 0000:22:00.0')):
            refused = function('21:00.1', **facts)
            self.assertIn(words, gpu.unassignable_reason(refused, None))
            self.assertIn(words, gpu.passthrough_refusal(refused))
        self.assertIsNone(gpu.unassignable_reason(function('21:00.0'), None))
        self.assertIsNone(gpu.passthrough_refusal(function('21:00.0')))

    def test_function_without_vfio_driver_is_for_vgpus_only(self):
        for facts, mechanism, refused in (
                ({}, None, True), ({}, 'mdev', False), ({}, 'vf', False),
                ({'pf': '/pf'}, None, True), ({'pf': '/pf'}, 'vf', True)):
            reason = gpu.unassignable_reason(
                function('21:00.4', vfio_refusal='no driver', **facts),
                mechanism)
            self.assertEqual('no driver' if refused else None, reason)
        self.assertEqual('no driver', gpu.passthrough_refusal(
            function('21:00.0', vfio_refusal='no driver')))

    def test_assigned_vf_needs_an_iommu_group_of_its_own(self):
        # As without ACS; the second guest could not have the group.
        foreign = {'iommu_foreign_members': ('0000:21:00.5',)}
        vf = function('21:00.4', pf='/pf', **foreign)
        for mechanism, refused in (('vf', True), ('mdev', False)):
            reason = gpu.unassignable_reason(vf, mechanism)
            self.assertEqual(refused, reason is not None, mechanism)
        self.assertIsNone(gpu.unassignable_reason(
            function('21:00.0', **foreign), 'vf'))

    def test_gpu_that_the_host_uses_may_have_mdevs(self):
        for facts in (
            {'used_by': 'boot_vga'},
            {'iommu_foreign_members': ('0000:22:00.0',), 'group': 7},
        ):
            igpu = function('21:00.1', **facts)
            self.assertIsNone(gpu.unassignable_reason(igpu, 'mdev'))
            self.assertIsNotNone(gpu.passthrough_refusal(igpu))
        for facts in ({'fault': 'dead'}, {'owner': 'Nova'}):
            self.assertIsNotNone(gpu.unassignable_reason(
                function('21:00.1', **facts), 'mdev'))
