# SPDX-License-Identifier: Apache-2.0
"""Tests of packing vGPUs and of reserved whole GPUs."""

from oslotest import base as test_base

from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import offer as offer_mod
from gpgpu_plugin.domain.allocation import request as request_mod
from tests.unit.domain.allocation import base

# Its driver makes no larger types, so that none is lost by a 4.
_ONLY_SMALL = {'16': 0, '8': 0, '8A': 0, '4': 4}


class PackTest(test_base.BaseTestCase):

    def pack(self, count: int, *gpu_ids: str,
             ) -> dict[str, list[str]] | None:
        gpus = [base.gpu('a'), base.gpu('b', '8')]
        self.gpus = {gpu.id: gpu for gpu in gpus if gpu.id in gpu_ids}
        selections = allocate.pack_vgpus(
            self.gpus, base.offers(gpus),
            base.request({'V8': count}).demands, base.DEPTH)
        return None if selections is None else {
            name: [selection.gpu_id for selection in selected]
            for name, selected in selections.items()}

    def test_gpus_are_filled_one_after_the_other(self) -> None:
        self.assertEqual({'V8': ['b', 'a', 'a']}, self.pack(3, 'a', 'b'))
        self.assertEqual((2, 2), (
            len(self.gpus['a'].vgpus), len(self.gpus['b'].vgpus)))

    def test_gpus_that_may_not_be_used_are_left_alone(self) -> None:
        self.assertEqual({'V8': ['a', 'a']}, self.pack(2, 'a'))

    def test_none_if_not_all_fit(self) -> None:
        self.assertIsNone(self.pack(4, 'a', 'b'))


class OrderTest(test_base.BaseTestCase):

    def first(self, policy: request_mod.AllocationPolicy,
              *gpus: vgpu.GPUCapacity) -> str:
        selections = allocate.pack_vgpus(
            {gpu.id: gpu for gpu in gpus}, base.offers(gpus),
            base.request({'V4': 1}).demands, policy)
        return selections['V4'][0].gpu_id

    def test_depth_first_takes_a_used_gpu_whatever_is_lost(self) -> None:
        self.assertEqual('b', self.first(
            base.DEPTH, base.gpu('a', driver_available=_ONLY_SMALL),
            base.gpu('b', '8')))

    def test_breadth_first_takes_of_equal_gpus_where_least_is_lost(
            self) -> None:
        self.assertEqual('b', self.first(
            base.BREADTH, base.gpu('a'),
            base.gpu('b', driver_available=_ONLY_SMALL)))


class ReservedGPUsTest(test_base.BaseTestCase):

    def reserved(self, *gpus: object, count: int = 1) -> list[str]:
        offers = base.offers(gpus)  # type: ignore[arg-type]
        return [''.join(sorted(subset)) for subset in allocate.reserved_gpus(
            [offers['V8']], [(offers['WHOLE'], count, None)])]

    def test_gpus_with_the_fewest_vgpus_available_are_first(self) -> None:
        self.assertEqual(['b', 'a'], self.reserved(
            base.gpu('a', passthrough=True),
            base.gpu('b', passthrough=True, driver_available={'8': 1})))

    def test_of_equivalent_gpus_only_the_first_are_tried(self) -> None:
        gpus = [base.gpu(gpu_id, passthrough=True, numa_node=number)
                for number, gpu_id in enumerate('abcd')]
        self.assertEqual(['a'], self.reserved(*gpus))
        self.assertEqual(['ab'], self.reserved(*gpus, count=2))

    def test_gpus_that_cannot_be_whole_are_never_reserved(self) -> None:
        self.assertEqual(['b'], self.reserved(
            base.gpu('a', '4', passthrough=True),
            base.gpu('b', passthrough=True), base.gpu('c')))

    def test_too_few_that_can_be_whole(self) -> None:
        self.assertEqual([], self.reserved(
            base.gpu('a', passthrough=True), count=2))

    def test_gpus_without_the_demanded_types_are_equivalent(self) -> None:
        others = [base.whole_gpu('x'), base.whole_gpu('y', free_vfs=1)]
        vgpus = offer_mod.TypeOffer(
            vgpu_type='8', gpus=[base.gpu('a', passthrough=True)])
        self.assertEqual([{'x'}, {'a'}], list(allocate.reserved_gpus(
            [vgpus], [(base.passthrough([*vgpus.gpus, *others]), 1, None)])))
