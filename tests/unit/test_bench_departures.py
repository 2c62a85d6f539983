# SPDX-License-Identifier: Apache-2.0
"""Tests of guests that arrive and leave."""

from __future__ import annotations

from oslotest import base

from bench.simulation import departures

SIZES = {1: 1.0, 4: 4.0}


class Closed(departures.Pool):
    """A pool that refuses everybody."""

    units = 10.0

    def place(self, size: int) -> None:
        return None

    def release(self, place: object) -> None:
        raise AssertionError('nothing was placed')


class Watched(departures.Unfragmented):
    """A pool that knows its guests."""

    def __init__(self) -> None:
        super().__init__(20.0, SIZES)
        self.placed = self.released = self.most = 0

    def place(self, size: int) -> object | None:
        place = super().place(size)
        self.placed += place is not None
        self.most = max(self.most, self.placed - self.released)
        return place

    def release(self, place: object) -> None:
        super().release(place)
        self.released += 1


def simulate(pool, load=1.0, seed=1, lifetimes=20.0):
    return departures.simulate(pool, {1: .5, 4: .5}, SIZES, load=load,
                               seed=seed, lifetimes=lifetimes)


def _accepted_percent(units, guests):
    """Return how much of the demanded units is accepted in the long run.

    :param guests: mean number that would be there without a limit, by size
    """
    chances = [1.0]
    for used in range(1, units + 1):
        chances.append(sum(
            size * mean * chances[used - size]
            for size, mean in guests.items() if size <= used) / used)
    accepted = sum(
        size * mean * sum(chances[:units + 1 - size])
        for size, mean in guests.items())
    return 100 * accepted / sum(chances) / sum(
        size * mean for size, mean in guests.items())


class SimulateTest(base.BaseTestCase):

    def test_guests_leave_and_make_room(self) -> None:
        pool = Watched()
        outcome = simulate(pool)
        self.assertGreater(pool.placed, 5 * pool.most)
        self.assertLessEqual(pool.most, 20)
        self.assertTrue(50 < outcome.accepted_percent < 100, outcome)

    def test_little_load_is_accepted_whole(self) -> None:
        outcome = simulate(Watched(), load=.1)
        self.assertEqual((100.0, 0), (outcome.accepted_percent,
                                      outcome.refused))

    def test_closed_pool_accepts_nothing(self) -> None:
        outcome = simulate(Closed())
        self.assertEqual(0.0, outcome.accepted_percent)
        self.assertTrue(0 < outcome.refused < outcome.decisions, outcome)

    def test_demand_is_what_was_asked_for(self) -> None:
        # 1000 units for 100 mean lifetimes, in guests of 1.6 units each.
        decisions = departures.simulate(
            departures.Unfragmented(1000.0, SIZES), {1: .5, 4: .5}, SIZES,
            load=1.0, seed=3, lifetimes=95.0).decisions
        self.assertLess(abs(decisions / 62_500 - 1), .03)

    def test_no_fragmentation_is_as_the_formula_says(self) -> None:
        # Whatever lifetimes are distributed like, by Kaufman and Roberts.
        outcome = departures.simulate(
            departures.Unfragmented(20.0, SIZES), {1: .5, 4: .5}, SIZES,
            load=1.0, seed=4, lifetimes=10_000.0)
        self.assertAlmostEqual(
            _accepted_percent(20, {1: 10.0, 4: 2.5}),
            outcome.accepted_percent, delta=.7)

    def test_same_seed_has_the_same_result(self) -> None:
        self.assertEqual(simulate(Watched()), simulate(Watched()))
        self.assertNotEqual(simulate(Watched()), simulate(Watched(), seed=2))
