# SPDX-License-Identifier: Apache-2.0
"""Tests of the vGPU capacity of one GPU."""

import dataclasses
import itertools
import typing

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin.domain import vgpu as vgpu_rules


def nvidia(*sizes: int) -> dict[str, vgpu_rules.VGPUType]:
    """Return types of these sizes in GiB; the largest is the GPU."""
    return {str(size): vgpu_rules.VGPUType(
        name=str(size), type_id=str(size), video_ram=size * 1024,
        max_instances=max(sizes) // size) for size in sizes}


def twins(types: dict[str, vgpu_rules.VGPUType],
          ) -> dict[str, vgpu_rules.VGPUType]:
    """Return other types of the same sizes."""
    return {f'{name}A': dataclasses.replace(kind, name=f'{name}A')
            for name, kind in types.items()}


MBOCHS = {name: vgpu_rules.VGPUType(
    name=name, type_id=f'mbochs-{name}', video_ram=size,
    max_instances=256 // size) for name, size in (
        ('small', 4), ('medium', 16), ('large', 64))}


def gpu(types: dict[str, vgpu_rules.VGPUType],
        mix_policy: vgpu_rules.VGPUMixPolicy,
        **fields: typing.Any) -> vgpu_rules.GPUCapacity:
    """Return a GPU that is offered."""
    return vgpu_rules.GPUCapacity(
        id='gpu', types=types, mix_policy=mix_policy, **fields)


def filled(empty: vgpu_rules.GPUCapacity,
           *names: str) -> vgpu_rules.GPUCapacity:
    """Return the GPU with vGPUs of these types, one after the other."""
    for name in names:
        empty = empty.with_vgpu(name)
    return empty


class SameTypeTest(base.BaseTestCase):
    """same_type: all vGPUs of one type."""

    def setUp(self) -> None:
        super().setUp()
        self.gpu = gpu(nvidia(16, 8, 4), vgpu_rules.VGPUMixPolicy.SAME_TYPE)

    def test_first_vgpu_decides_the_type(self) -> None:
        self.assertEqual([1, 2, 4], [
            self.gpu.available(name) for name in ('16', '8', '4')])
        used = filled(self.gpu, '4')
        self.assertEqual([0, 0, 3], [
            used.available(name) for name in ('16', '8', '4')])

    def test_vgpu_of_unknown_type_excludes_all(self) -> None:
        used = gpu(self.gpu.types, vgpu_rules.VGPUMixPolicy.SAME_TYPE,
                    vgpus=(vgpu_rules.VGPU(vgpu_type=vgpu_rules.UNKNOWN_TYPE),))
        self.assertEqual([0, 0, 0], [
            used.available(name) for name in ('16', '8', '4')])

    def test_no_more_than_there_are_free_vfs(self) -> None:
        few = gpu(
            self.gpu.types, vgpu_rules.VGPUMixPolicy.SAME_TYPE, free_vfs=1)
        self.assertEqual(1, few.available('4'))
        self.assertEqual(0, filled(few, '4').available('4'))

    def test_vgpu_that_does_not_fit_raises(self) -> None:
        self.assertRaises(ValueError, filled, self.gpu, '16', '16')


class EqualSizeTest(base.BaseTestCase):
    """NVIDIA's equal-size mode, as tests/listings/a6000-one-2q shows it."""

    def setUp(self) -> None:
        super().setUp()
        sizes = {'2Q': 2, '2A': 2, '4Q': 4, '48Q': 48}
        self.types = {name: vgpu_rules.VGPUType(
            name=name, type_id=name, video_ram=size * 1024,
            max_instances=48 // size) for name, size in sizes.items()}
        self.types['x'] = vgpu_rules.VGPUType(
            name='x', type_id='x', max_instances=5)

    def available(self, *names: str) -> list[int]:
        """Return what is available of each type beside these."""
        used = gpu(self.types, vgpu_rules.VGPUMixPolicy.EQUAL_SIZE,
                   vgpus=tuple(
            vgpu_rules.VGPU(vgpu_type=name) for name in names))
        return [used.available(name) for name in self.types]

    def test_first_vgpu_decides_the_size(self) -> None:
        self.assertEqual([24, 24, 12, 1, 5], self.available())
        self.assertEqual([23, 23, 0, 0, 0], self.available('2Q'))
        self.assertEqual([21, 21, 0, 0, 0], self.available('2Q', '2A', '2A'))

    def test_unknown_size_equals_no_other(self) -> None:
        self.assertEqual([0, 0, 0, 0, 4], self.available('x'))
        self.assertEqual([0, 0, 0, 0, 0],
                         self.available(vgpu_rules.UNKNOWN_TYPE))
        self.assertEqual([0, 0, 0, 0, 0], self.available('gone'))


class UnknownTest(base.BaseTestCase):
    """Tests of a vGPU of an unknown type."""

    def test_it_excludes_even_a_type_of_that_name(self) -> None:
        kind = vgpu_rules.VGPUType(
            name=vgpu_rules.UNKNOWN_TYPE, type_id='1', max_instances=4)
        for mix_policy in vgpu_rules.VGPUMixPolicy:
            self.assertEqual(0, gpu(
                {kind.name: kind}, mix_policy,
                vgpus=(vgpu_rules.VGPU(vgpu_type=vgpu_rules.UNKNOWN_TYPE),),
            ).available(kind.name))


class PassthroughTest(base.BaseTestCase):
    """passthrough: one instance per GPU."""

    def test_one_is_available_where_passthrough_is_possible(self) -> None:
        for fields, available in (
                ({'passthrough': True}, 1), ({}, 0),
                ({'passthrough': True, 'offered': False}, 0),
                # Neither VFs nor the driver have anything to do with it.
                ({'passthrough': True, 'free_vfs': 0,
                  'driver_available': {}}, 1)):
            self.assertEqual(available, gpu(
                MBOCHS, vgpu_rules.VGPUMixPolicy.SAME_TYPE,
                **fields).available('passthrough'), fields)

    def test_gpu_has_one_instance_whether_available_or_not(self) -> None:
        self.assertEqual(1, gpu(
            {}, vgpu_rules.VGPUMixPolicy.SAME_TYPE).max_instances(
                'passthrough'))

    def test_it_does_not_count_as_a_larger_type(self) -> None:
        any_mix = vgpu_rules.VGPUMixPolicy.ANY_MIX
        self.assertEqual(
            gpu(MBOCHS, any_mix).fragmentation_cost('small'),
            gpu(MBOCHS, any_mix, passthrough=True).fragmentation_cost(
                'small'))


class DriverAvailableTest(base.BaseTestCase):
    """Tests of the capacity that the driver reports."""

    def test_no_more_than_the_driver_reports(self) -> None:
        used = gpu(MBOCHS, vgpu_rules.VGPUMixPolicy.ANY_MIX, driver_available={
            'small': 2, 'medium': None})
        self.assertEqual([2, 16, 0], [
            used.available(name) for name in ('small', 'medium', 'large')])
        used = filled(used, 'small', 'medium')
        self.assertEqual([1, 14, 0], [
            used.available(name) for name in ('small', 'medium', 'large')])

    def test_cost_is_what_larger_types_lose_the_largest_first(self) -> None:
        used = gpu(MBOCHS, vgpu_rules.VGPUMixPolicy.ANY_MIX)
        self.assertEqual((1, 1, 1), used.fragmentation_cost('small'))
        used = filled(used, 'small')
        self.assertEqual((0, 0, 1), used.fragmentation_cost('small'))


class AnyMixTest(base.BaseTestCase):
    """any_mix: the kernel's mbochs, 256 MB."""

    def test_vgpus_take_their_share_of_the_gpu(self) -> None:
        used = filled(gpu(MBOCHS, vgpu_rules.VGPUMixPolicy.ANY_MIX),
                      'large', 'large', 'medium')
        self.assertEqual([28, 7, 1], [
            used.available(name) for name in ('small', 'medium', 'large')])

    def test_type_that_the_gpu_does_not_support(self) -> None:
        used = gpu(MBOCHS, vgpu_rules.VGPUMixPolicy.ANY_MIX,
                    vgpus=(vgpu_rules.VGPU(vgpu_type='mtty-1'),))
        self.assertEqual(0, used.available('small'))
        self.assertEqual(0, gpu(
            MBOCHS, vgpu_rules.VGPUMixPolicy.ANY_MIX).available('mtty-1'))


class MIGTest(base.BaseTestCase):
    """MIG-backed types, each in an instance of its own, by any policy."""

    H100 = ('H100-1-10C', 'H100-1-10CME', 'H100-1-20C', 'H100-3-40C',
            'H100-80C')
    PRO = ('DC-1-24Q', 'DC-1-12Q', 'DC-2-48Q')

    def available(self, listed: tuple[str, ...], *used: str,
                  ) -> list[int] | None:
        """Return how many of each type fit, which is so by each policy."""
        types = {known.name: known for known
                 in vgpu_rules.types_from_sysfs(''.join(
                     f'{number} : NVIDIA {name}\n'
                     for number, name in enumerate(listed)))}
        found = []
        for policy in vgpu_rules.VGPUMixPolicy:
            one = filled(gpu(types, policy, free_vfs=48), *used)
            found.append([one.available(name) for name in types])
        self.assertEqual([found[0]] * len(found), found)
        return found[0]

    def test_types_of_two_sizes_share_a_card(self) -> None:
        self.assertEqual([7, 1, 4, 2, 1], self.available(self.H100))
        self.assertEqual([4, 1, 4, 1, 0],
                         self.available(self.H100, 'H100-3-40C'))
        self.assertEqual([5, 0, 4, 1, 0], self.available(
            self.H100, 'H100-1-10C', 'H100-1-10CME'))
        self.assertEqual([0, 0, 0, 0, 0], self.available(
            self.H100, *['H100-1-10C'] * 7))

    def test_vgpus_share_instances_of_a_card_with_four_slices(self) -> None:
        pro = tuple(f'RTX Pro 6000 Blackwell {name}' for name in self.PRO)
        # By name: 12Q, 24Q, 2-48Q.
        self.assertEqual([8, 4, 2], self.available(pro))
        self.assertEqual([5, 2, 1], self.available(
            pro, 'RTX-Pro-6000-Blackwell-DC-1-24Q',
            'RTX-Pro-6000-Blackwell-DC-1-12Q'))

    def test_driver_that_lists_no_more_decides(self) -> None:
        types = {known.name: known for known in vgpu_rules.types_of_names(
            ['H100-1-10C', 'L40S-12Q'])}
        one = gpu(types, vgpu_rules.VGPUMixPolicy.SAME_TYPE, free_vfs=16,
                  driver_available={'L40S-12Q': None})
        self.assertEqual(
            [0, 16], [one.available(name) for name in types])
        # Of which only the name is known, there is one for each VF at most.
        one = filled(one, 'L40S-12Q')
        self.assertEqual((16, 15), (
            one.max_instances('L40S-12Q'), one.available('L40S-12Q')))


class MixedSizeTest(base.BaseTestCase):
    """NVIDIA's tables, appendix "vGPU Placements for GPUs in Mixed-Size
    Mode" of the user guide."""

    TABLES: typing.ClassVar = {
        94: {94: [0], 47: [0, 47], 23: [0, 24, 47, 71],
             15: [0, 32, 47, 79], 11: [0, 12, 23, 36, 47, 59, 70, 83],
             6: [0, 17, 23, 41, 47, 64, 70, 88],
             4: [0, 7, 11, 19, 23, 31, 35, 43, 47, 54, 58, 66, 70, 78, 82,
                 90]},
        80: {80: [0], 40: [0, 40], 20: [0, 20, 40, 60],
             16: [0, 24, 40, 64], 10: [0, 10, 20, 30, 40, 50, 60, 70],
             8: [0, 12, 20, 32, 40, 52, 60, 72],
             5: list(range(0, 80, 5)),
             4: [0, 6, 10, 16, 20, 26, 30, 36, 40, 46, 50, 56, 60, 66, 70,
                 76]},
        24: {24: [0], 12: [0, 12], 8: [0, 16], 6: [0, 6, 12, 18],
             4: [0, 8, 12, 20], 3: list(range(0, 24, 3)),
             2: [0, 4, 6, 10, 12, 16, 18, 22],
             1: [0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 20, 21, 23]}}

    def test_placement_ids_are_those_of_the_tables(self) -> None:
        for region, table in self.TABLES.items():
            types = nvidia(*table)
            for size, placements in table.items():
                used = gpu(types, vgpu_rules.VGPUMixPolicy.MIXED_SIZE)
                found = []
                while used.available(str(size)):
                    used = used.with_vgpu(str(size))
                    found.append(used.vgpus[-1].placement_id)
                self.assertEqual(
                    placements, sorted(found, key=lambda n: n or 0),
                    (region, size))

    def test_placements_that_no_driver_has_are_not_used(self) -> None:
        largest = str(2 ** 30)
        huge = gpu(nvidia(1, 2 ** 30), vgpu_rules.VGPUMixPolicy.MIXED_SIZE)
        self.assertEqual(128, huge.available('1'))
        used = huge.with_vgpu('1')
        self.assertEqual(
            (127, 0), (used.available('1'), used.available(largest)))

    def test_largest_type_that_can_fit_keeps_fitting(self) -> None:
        used = filled(gpu(nvidia(24, 12, 6, 4),
                           vgpu_rules.VGPUMixPolicy.MIXED_SIZE), '6', '4')
        self.assertEqual(1, used.available('12'))

    def test_new_vgpu_is_placed_where_larger_types_keep_fitting(self) -> None:
        used = gpu(nvidia(24, 12, 6), vgpu_rules.VGPUMixPolicy.MIXED_SIZE,
                   vgpus=(vgpu_rules.VGPU(vgpu_type='6', placement_id=12),))
        # 0 and 6 are free, too, in the other half.
        self.assertEqual(18, used.with_vgpu('6').vgpus[-1].placement_id)

    def test_vgpu_at_an_unknown_placement_excludes_all(self) -> None:
        used = gpu(nvidia(24, 12), vgpu_rules.VGPUMixPolicy.MIXED_SIZE,
                    vgpus=(vgpu_rules.VGPU(vgpu_type='12'),))
        self.assertEqual(0, used.available('12'))


@st.composite
def _gpus(draw: st.DrawFn) -> vgpu_rules.GPUCapacity:
    mix_policy = draw(st.sampled_from(vgpu_rules.VGPUMixPolicy))
    types = draw(st.sampled_from([
        MBOCHS, nvidia(24, 12, 8, 6, 4), nvidia(80, 40, 16, 10, 4),
        nvidia(24, 12, 8) | twins(nvidia(24, 12, 8))]))
    if mix_policy is vgpu_rules.VGPUMixPolicy.MIXED_SIZE:
        types = nvidia(24, 12, 8, 6, 4)
    free_vfs = draw(st.none() | st.integers(min_value=0, max_value=8))
    return gpu(types, mix_policy, free_vfs=free_vfs)


class AvailableTest(base.BaseTestCase):
    """Property tests of every mix policy after any history."""

    @given(_gpus(), st.lists(st.integers(min_value=0, max_value=99),
                              max_size=12), st.data())
    def test_what_is_available_can_be_had_and_no_more(
            self, used: vgpu_rules.GPUCapacity, steps: list[int],
            data: st.DataObject) -> None:
        names = sorted(used.types)
        for step in steps:
            if step % 3 == 0 and used.vgpus:
                gone = used.vgpus[step % len(used.vgpus)]
                used = dataclasses.replace(
                    used, free_vfs=None if used.free_vfs is None
                    else used.free_vfs + 1,
                    vgpus=tuple(
                        vgpu for vgpu in used.vgpus if vgpu is not gone))
            elif used.available(name := names[step % len(names)]):
                used = used.with_vgpu(name)
        name = data.draw(st.sampled_from(names))
        available = used.available(name)
        self.assertLessEqual(available, used.max_instances(name))
        for left in range(available, 0, -1):
            self.assertEqual(left, used.available(name))
            used = used.with_vgpu(name)
        self.assertEqual(0, used.available(name))
        self._fits_the_hardware(used)

    def _fits_the_hardware(self, used: vgpu_rules.GPUCapacity) -> None:
        sizes = [used.types[vgpu.vgpu_type].video_ram or 0
                 for vgpu in used.vgpus]
        memory = max(kind.video_ram * kind.max_instances  # type: ignore[operator]
                     for kind in used.types.values())
        self.assertLessEqual(sum(sizes), memory)
        if used.mix_policy is vgpu_rules.VGPUMixPolicy.SAME_TYPE:
            self.assertLessEqual(
                len({vgpu.vgpu_type for vgpu in used.vgpus}), 1)
        if used.mix_policy is vgpu_rules.VGPUMixPolicy.EQUAL_SIZE:
            self.assertLessEqual(len(set(sizes)), 1)
        if used.mix_policy is vgpu_rules.VGPUMixPolicy.MIXED_SIZE:
            spans = sorted(
                (vgpu.placement_id or 0,
                 (vgpu.placement_id or 0) + size // 1024)
                for vgpu, size in zip(used.vgpus, sizes, strict=True))
            for (_, end), (begin, _) in itertools.pairwise(spans):
                self.assertLessEqual(end, begin)

    @given(_gpus(), st.data())
    def test_passthrough_and_vgpus_exclude_each_other(
            self, empty: vgpu_rules.GPUCapacity, data: st.DataObject) -> None:
        empty = dataclasses.replace(empty, passthrough=True)
        name = data.draw(st.sampled_from(sorted(empty.types)))
        self.assertEqual(1, empty.available('passthrough'))
        whole = empty.with_vgpu('passthrough')
        self.assertEqual([0, 0], [
            whole.available(name), whole.available('passthrough')])
        if empty.available(name):
            self.assertEqual(
                0, empty.with_vgpu(name).available('passthrough'))

    def test_gpu_that_is_not_offered_has_none(self) -> None:
        self.assertEqual(0, vgpu_rules.GPUCapacity(
            id='x', offered=False, types=MBOCHS).available('small'))
