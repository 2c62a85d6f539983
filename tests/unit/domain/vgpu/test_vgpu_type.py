# SPDX-License-Identifier: Apache-2.0
"""Tests of vGPU types as drivers describe them."""

import typing

from oslotest import base

from gpgpu_plugin.domain import vgpu

T4 = ('num_heads=4, frl_config=60, framebuffer=1024M, '
      'max_resolution=5120x2880, max_instance=16')


class MdevTest(base.BaseTestCase):
    """Tests of the texts below mdev_supported_types."""

    def test_nvidia(self) -> None:
        self.assertEqual(
            vgpu.VGPUType(
                name='T4-1Q', type_id='nvidia-230', video_ram=1024,
                max_heads=4, max_resolution_x=5120, max_resolution_y=2880,
                max_instances=16),
            vgpu.type_from_mdev('nvidia-230', 'GRID T4-1Q', T4, None))

    def test_the_brand_changes_with_the_release(self) -> None:
        self.assertEqual(
            {'T4-1Q'}, {vgpu.type_from_mdev('nvidia-230', name, T4, 1).name
                        for name in ('GRID T4-1Q', 'NVIDIA T4-1Q')})

    def test_gvt_g_has_no_name(self) -> None:
        found = vgpu.type_from_mdev(
            'i915-GVTg_V5_4', None,
            'low_gm_size: 128MB\nhigh_gm_size: 512MB\nfence: 4\n'
            'resolution: 1920x1200\nweight: 4\n', 1)
        self.assertEqual(
            ('i915-GVTg_V5_4', 512, 1920, 1200, 1),
            (found.name, found.video_ram, found.max_resolution_x,
             found.max_resolution_y, found.max_instances))

    def test_the_kernels_samples(self) -> None:
        medium = vgpu.type_from_mdev(
            'mbochs-medium', 'mbochs-medium',
            'virtual display, 16 MB video memory\n', 16)
        self.assertEqual(('mbochs-medium', 16, 16),
                         (medium.name, medium.video_ram,
                          medium.max_instances))
        port = vgpu.type_from_mdev(
            'mtty-1', 'Single port serial', None, 24)
        self.assertEqual(('mtty-1', None, 24), (
            port.name, port.video_ram, port.max_instances))

    def test_what_is_not_reported_is_unknown(self) -> None:
        self.assertEqual(
            vgpu.VGPUType(name='x-1', type_id='x-1'),
            vgpu.type_from_mdev('x-1', None, None, None))


class TypesOfVFTest(base.BaseTestCase):
    """Tests of the file creatable_vgpu_types of a VF."""

    TEXT = ('ID    : vGPU Name\n'
            '1145  : NVIDIA L40S-1B\n1153  : NVIDIA L40S-12Q\n'
            '1156  : NVIDIA L40S-48Q\n')

    def test_numbers_and_sizes(self) -> None:
        found = {
            listed.name: listed
            for listed in vgpu.types_from_sysfs(self.TEXT)
        }
        self.assertEqual({
            'L40S-1B': ('1145', 1024, 48), 'L40S-12Q': ('1153', 12288, 4),
            'L40S-48Q': ('1156', 49152, 1)},
            {name: (listed.type_id, listed.video_ram, listed.max_instances)
             for name, listed in found.items()})

    def test_type_of_a_mig_slice(self) -> None:
        [found] = vgpu.types_from_sysfs(
            '1414 : NVIDIA H200X-1-18C'
        )
        self.assertEqual(('H200X-1-18C', 18 * 1024),
                         (found.name, found.video_ram))

    def most(self, *names: str) -> list[int | None]:
        """Return how many of each type of a listing fit, in its order."""
        found = {listed.name: listed.max_instances for listed
                 in vgpu.types_from_sysfs(''.join(
                     f'{number} : NVIDIA {name}\n'
                     for number, name in enumerate(names)))}
        return [found[name.replace(' ', '-')] for name in names]

    def test_mig_types_fit_as_often_as_their_slices(self) -> None:
        for names, expected in (
                # With seven slices; +me is on one instance alone.
                (('H100-1-10C', 'H100-1-10CME', 'H100-2-20C', 'H100-3-40C'),
                 [7, 1, 3, 2]),
                (('B200X-1-23C', 'B200X-1-23CME', 'B200X-1-45C',
                  'B200X-2-45C'), [7, 1, 4, 3]),
                (('H200X-1-18C', 'H200X-1-18CNOME', 'H200X-3-71C',
                  'H200X-4-71C', 'H200X-7-141C'), [7, 7, 2, 1, 1]),
                (('H100-3-40C',), [2]),
                (('H100L-1-12C', 'H100L-94C', 'H100L-47C'), [7, 1, 2]),
                # With four.
                (('A30-1-6C', 'A30-1-6CME', 'A30-2-12C', 'A30-4-24C'),
                 [4, 1, 2, 1])):
            self.assertEqual(expected, self.most(*names), names)

    def test_vgpus_share_mig_instances_of_a_card_with_four(self) -> None:
        card = 'RTX Pro 6000 Blackwell DC-'
        sizes = (24, 12, 8, 6, 4, 3, 2)
        alone = [f'{card}1-{size}Q' for size in sizes]
        self.assertEqual([4, 8, 12, 16, 24, 32, 48], self.most(*alone))
        self.assertEqual(
            [4, 8, 12, 16, 24, 32, 48, 2, 1, 1, 2],
            self.most(*alone, f'{card}2-48Q', f'{card}4-96Q', f'{card}96Q',
                      f'{card}48Q'))

    def test_listing_beside_vgpus_shows_mig_types_alone(self) -> None:
        for name, expected in (
                ('H100-1-10C', 7), ('L40S-12Q', None), ('A30-1-6C', None)):
            [known] = vgpu.types_of_names([name])
            self.assertEqual(expected, known.max_instances, name)

    def test_what_follows_the_series(self) -> None:
        self.assertEqual(
            {'T4-2B4': 2, 'A100-1-5CME': 5, 'H200X-1-18CNOME': 18,
             'DC-1-24CMEALL': 24, 'DC-1-24QGFX': 24, 'T4-2B5': None},
            {listed.name: listed.video_ram and listed.video_ram // 1024
             for listed in vgpu.types_from_sysfs(''.join(
                 f'{number} : NVIDIA {name}\n' for number, name in enumerate((
                     'T4-2B4', 'A100-1-5CME', 'H200X-1-18CNOME',
                     'DC-1-24CMEALL', 'DC-1-24QGFX', 'T4-2B5'))))})

    def test_a_name_without_a_size_fits_nobody_knows_how_often(self) -> None:
        [found] = vgpu.types_from_sysfs('7 : Something')
        self.assertEqual((None, None),
                         (found.video_ram, found.max_instances))

    def test_nothing(self) -> None:
        self.assertEqual((), vgpu.types_from_sysfs('0\n'))


class ImplausibleTest(base.BaseTestCase):

    def reason(self, **fields: typing.Any) -> str | None:
        return vgpu.implausible_type(vgpu.VGPUType(
            **{'name': 'T4-1Q', 'type_id': '1', **fields}))

    def test_largest_numbers_and_unknown_ones_are_plausible(self) -> None:
        self.assertIsNone(self.reason())
        self.assertIsNone(self.reason(
            name='x' * 64, video_ram=4 * 1024 ** 2, max_heads=0,
            max_instances=1024, max_resolution_x=7680, max_resolution_y=4320))

    def test_number_or_name_that_no_type_has_is_named(self) -> None:
        for field in ('video_ram', 'max_heads', 'max_instances',
                      'max_resolution_x', 'max_resolution_y'):
            for number in (-1, 2 ** 31 - 1, 10 ** 20):
                self.assertIn(f'{field} is {number}, and not',
                              self.reason(**{field: number}) or '')
        self.assertEqual('its name has 65 characters',
                         self.reason(name='x' * 65))
