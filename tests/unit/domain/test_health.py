# SPDX-License-Identifier: Apache-2.0
"""Tests of the rules of health."""

from oslotest import base

from gpgpu_plugin.domain import health


def history(*readings):
    found = health.ErrorHistory()
    for nonfatal in readings:
        found = found.after({'AER nonfatal': nonfatal})
    return found


class HealthTest(base.BaseTestCase):

    def judged(self, **facts):
        return health.judge(**{'fault': None, **facts})

    def test_gpu_without_findings_is_ok(self):
        self.assertEqual(
            health.Condition(health=health.Health.OK),
            self.judged(links=[health.Link(
                address='0000:3b:00.0', width=16, maximum=16)]))

    def test_gpu_that_does_not_answer_has_failed_whatever_else_is_found(self):
        found = self.judged(
            fault='reads all ones', history=history(0, 3))
        self.assertEqual((health.Health.FAILED, 'reads all ones'),
                         (found.health, found.reason))

    def test_narrow_link_degrades_with_both_widths(self):
        found = self.judged(links=[health.Link(
            address='0000:3b:00.0', width=8, maximum=16)])
        self.assertIs(health.Health.DEGRADED, found.health)
        self.assertEqual('the PCIe link of 0000:3b:00.0 has width x8, and '
                         'both of its ends have x16', found.reason)

    def test_unknown_width_is_not_judged(self):
        for width, maximum in ((0, 16), (8, 0), (0, 0)):
            self.assertIs(health.Health.OK, self.judged(links=[health.Link(
                address='0000:3b:00.0', width=width, maximum=maximum)],
            ).health)

    def test_new_errors_degrade_with_their_numbers(self):
        found = self.judged(history=health.ErrorHistory(new={
            'AER nonfatal': 2, 'AER fatal': 1}))
        self.assertEqual(
            '3 uncorrectable errors since its last cleaning: AER fatal 1, '
            'AER nonfatal 2', found.reason)

    def test_corrected_errors_are_shown_and_not_judged(self):
        found = self.judged(counts=health.ErrorCounts(
            uncorrected={'AER fatal': 0}, corrected={'AER correctable': 9}))
        self.assertIs(health.Health.OK, found.health)
        self.assertEqual({'AER fatal': 0, 'AER correctable': 9},
                         found.errors)

    def test_errors_before_the_first_reading_do_not_count(self):
        self.assertEqual({}, history(7).new)
        self.assertEqual({'AER nonfatal': 2}, history(7, 9).new)

    def test_count_that_fell_began_again_at_0(self):
        self.assertEqual({'AER nonfatal': 2 + 1}, history(7, 9, 1).new)
        self.assertEqual({'AER nonfatal': 2}, history(7, 9, 0).new)

    def test_count_that_cannot_be_read_for_a_while_is_kept(self):
        found = history(7).after({}).after({'AER nonfatal': 8})
        self.assertEqual({'AER nonfatal': 1}, found.new)

    def test_cleaning_forgets_errors_and_not_the_count(self):
        found = history(7, 9).cleaned()
        self.assertEqual({}, found.new)
        self.assertEqual({}, found.after({'AER nonfatal': 9}).new)
        self.assertEqual({'AER nonfatal': 1},
                         found.after({'AER nonfatal': 10}).new)
