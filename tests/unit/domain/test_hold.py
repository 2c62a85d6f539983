# SPDX-License-Identifier: Apache-2.0
"""Tests of the words for holds."""

from oslotest import base

from gpgpu_plugin.domain import device

_K = device.HoldKind


class ShownAsTest(base.BaseTestCase):

    def test_kinds_that_withdraw_have_the_words_of_shown_states(self):
        for kind in _K:
            shown = device.shown_as({kind})
            self.assertEqual(kind in device.WITHDRAWING, shown is not None)
            self.assertIn(shown, (device.QUARANTINED, device.RETIRED, None))
        self.assertIsNone(device.shown_as(()))

    def test_retired_comes_before_quarantined(self):
        self.assertEqual(device.RETIRED, device.shown_as(set(_K)))
        self.assertEqual(device.QUARANTINED, device.shown_as(
            set(_K) - {_K.RETIRED}))

    def test_only_what_an_operator_set_follows_a_card(self):
        self.assertEqual({_K.QUARANTINED, _K.RETIRED}, device.DECIDED)
