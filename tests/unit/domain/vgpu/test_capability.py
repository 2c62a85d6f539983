# SPDX-License-Identifier: Apache-2.0
"""Tests of the vGPU capability of a function after a scan."""

from oslotest import base

from gpgpu_plugin.domain import vgpu

MDEV, VF = vgpu.VGPUMechanism


def types(**max_instances):
    return tuple(
        vgpu.VGPUType(name=name, type_id=name, max_instances=count)
        for name, count in max_instances.items())


TYPES = types(A=4, B=2)


def vgpus(mechanism=MDEV, listed=TYPES, existing=()):
    return vgpu.VGPUCapability(
        mechanism=mechanism, types=listed, existing_vgpus=existing)


class MergeTest(base.BaseTestCase):

    def merge(self, stored, observed, *, in_use=False, own=()):
        return vgpu.merge_capability(
            stored, observed, in_use=in_use, own_vgpus=own)

    def test_first_scan_is_taken_but_for_own_vgpus(self):
        self.assertEqual(vgpus(existing=('other',)), self.merge(
            None, vgpus(existing=('mine', 'other')), own={'mine'}))
        self.assertEqual(vgpus(VF, None), self.merge(None, vgpus(VF, None)))

    def test_driver_that_is_gone_takes_the_types_of_an_available_gpu(self):
        self.assertIsNone(self.merge(vgpus(), None))
        self.assertIsNone(self.merge(None, None, in_use=True))

    def test_gpu_in_use_keeps_the_types_that_no_driver_lists(self):
        stored = vgpus(existing=('other',))
        self.assertEqual(vgpus(), self.merge(stored, None, in_use=True))
        self.assertEqual(
            vgpus(existing=('new',)),
            self.merge(stored, vgpus(listed=(), existing=('new',)),
                       in_use=True))

    def test_available_gpu_whose_driver_lists_no_type_has_none(self):
        self.assertEqual(
            vgpus(listed=()), self.merge(vgpus(), vgpus(listed=())))

    def test_types_that_are_not_listed_now_stay(self):
        self.assertEqual(
            vgpus(VF, existing=('558',)),
            self.merge(vgpus(VF), vgpus(VF, None, ('558',))))

    def test_known_maxima_stay_where_the_driver_lists_none(self):
        self.assertEqual(
            vgpus(listed=types(A=4, B=3, C=None)),
            self.merge(vgpus(), vgpus(listed=types(A=None, B=3, C=None))))
