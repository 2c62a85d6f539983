# SPDX-License-Identifier: Apache-2.0
"""Tests of what is said about the cleaning of new devices."""

from oslotest import base

from gpgpu_plugin.domain import device


class TextTest(base.BaseTestCase):

    def check(self, text, seconds, *counts):
        devices, cleaned, waiting, cleaning, stuck = counts
        self.assertEqual(text, device.FirstCleanings(
            devices=devices, cleaned=cleaned, waiting=waiting,
            cleaning=cleaning, stuck=stuck).text(seconds))

    def test_time_is_said_if_it_is_known(self):
        self.check('3 of 8 cleaned', (), 8, 3, 5, 1, 0)
        self.check('4 of 8 cleaned, about 5 min', (60, 61, 600),
                   8, 4, 4, 1, 0)
        self.check('1 of 2 cleaned, about 1 min', (0,), 2, 1, 1, 1, 0)

    def test_several_are_cleaned_at_once(self):
        for waiting in (5, 8):
            self.check('0 of 8 cleaned, about 4 min', (120,),
                       8, 0, waiting, 4, 0)
        # Nothing is being cleaned yet.
        self.check('0 of 2 cleaned, about 3 min', (90,), 2, 0, 2, 0, 0)

    def test_those_that_wait_for_another_policy_take_no_time(self):
        self.check('2 of 8 cleaned, 2 need another cleaning policy, about '
                   '1 min', (30,), 8, 2, 4, 4, 2)
        self.check('0 of 8 cleaned, 8 need another cleaning policy', (30,),
                   8, 0, 0, 0, 8)
