# SPDX-License-Identifier: Apache-2.0
"""Tests of free capacity of hosts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies
from oslotest import base

from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import weighing
from tests.fixtures import lattice

ANY: frozenset[str] = frozenset()


def host(vcpus=16, gib=64, free=(1000, 1000), variant='T4'):
    return weighing.HostCapacity(vcpus * 1000, gib * 1024, tuple(free),
                                 variant)


def linked(free, guests=0, is_confined=True, **fields):
    """Return a host of eight linked GPUs of which some are free."""
    return host(96, 768, [1000] * free.bit_count(), **fields)._replace(
        links=weighing.HostLinks(fabric.partitions_of(lattice.of(8)), free,
                                 is_confined, guests))


def request(vcpus=4, gib=8, gpus=1, units=1000, variants=ANY,
            is_linked=False):
    return weighing.WeighedRequest(vcpus * 1000, gib * 1024, gpus, units,
                                   frozenset(variants), is_linked)


class AfterTest(base.BaseTestCase):

    def test_whole_gpus_leave_the_gpus_in_part(self) -> None:
        self.assertEqual(
            [host(12, 56, (0, 0, 300))],
            weighing.capacity_after(host(free=(300, 1000, 1000)),
                                    request(gpus=2)))

    def test_share_has_a_choice_for_each_different_gpu(self) -> None:
        found = weighing.capacity_after(host(free=(300, 500, 500, 1000)),
                                        request(units=400))
        self.assertEqual([(100, 300, 500, 1000), (300, 500, 500, 600)],
                         [state.free for state in found])

    def test_request_without_gpu_takes_none(self) -> None:
        self.assertEqual([host(12, 56)], weighing.capacity_after(
            host(), request(gpus=0, units=0, variants={'H100'})))

    def test_request_that_fits_not_has_no_choice(self) -> None:
        for needs in (request(vcpus=17), request(gib=65), request(gpus=3),
                      request(variants={'H100'})):
            self.assertEqual([], weighing.capacity_after(host(), needs), needs)
        self.assertEqual([], weighing.capacity_after(
            host(free=(300, 900)), request()))

    def test_linked_gpus_are_those_that_break_the_least(self) -> None:
        [state] = weighing.capacity_after(linked(0b1111_0100), request())
        self.assertEqual((0b1111_0000, 1),
                         (state.links.free, state.links.guests))
        self.assertEqual((0, 1000, 1000, 1000, 1000), state.free)
        # Two GPUs are free, but of different pairs.
        self.assertEqual([], weighing.capacity_after(linked(0b0110),
                                                     request(gpus=2)))

    def test_gpus_that_need_not_be_linked_may_be_no_partition(self) -> None:
        loose = linked(0b0110_1111, is_confined=False)
        [state] = weighing.capacity_after(loose, request(gpus=2))
        self.assertEqual(0b1111, state.links.free)

    def test_request_of_linked_gpus_gets_a_partition(self) -> None:
        loose = linked(0b0110_1111, is_confined=False)
        [state] = weighing.capacity_after(loose,
                                          request(gpus=2, is_linked=True))
        self.assertEqual((0b0110_1100, False),
                         (state.links.free, state.links.is_confined))
        self.assertEqual([], weighing.capacity_after(
            linked(0b0110, is_confined=False),
            request(gpus=2, is_linked=True)))
        # Nothing is known of the links of this one.
        self.assertEqual([], weighing.capacity_after(
            host(), request(is_linked=True)))

    def test_share_of_an_idle_gpu_breaks_its_partitions(self) -> None:
        started = linked(0b1111_0110)._replace(free=(500,) + (1000,) * 6)
        in_part, idle = weighing.capacity_after(started, request(units=400))
        self.assertEqual(((100, *[1000] * 6), 0b1111_0110, 1),
                         (in_part.free, *in_part.links[1:4:2]))
        self.assertEqual(((500, 600, *[1000] * 5), 0b1111_0100, 1),
                         (idle.free, *idle.links[1:4:2]))

    def test_request_without_gpu_leaves_links_as_they_are(self) -> None:
        before = linked(0b0110)
        [state] = weighing.capacity_after(before, request(gpus=0, units=0))
        self.assertEqual(before.links, state.links)

    @given(strategies.lists(strategies.integers(0, 10), max_size=8),
           strategies.integers(1, 4), strategies.integers(1, 10))
    def test_choice_takes_what_is_asked_and_no_more_than_free(
            self, free, gpus, units) -> None:
        before = host(free=sorted(part * 100 for part in free))
        needs = request(gpus=gpus, units=units * 100 if gpus == 1 else 1000)
        fits = sum(left >= needs.units for left in before.free) >= gpus
        found = weighing.capacity_after(before, needs)
        self.assertEqual(fits, bool(found))
        for state in found:
            self.assertEqual(sum(before.free) - needs.total_units,
                             sum(state.free))
            self.assertEqual(sorted(state.free), list(state.free))
            self.assertGreaterEqual(state.free[0], 0)
