# SPDX-License-Identifier: Apache-2.0
"""Tests of the state table, written out a second time."""

import itertools

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import device

LEGAL = {
    ('available', 'claim'): 'provisioning',
    ('available', 'distrust'): 'dirty',
    ('available', 'adopt'): 'assigned',
    ('provisioning', 'activate'): 'assigned',
    ('provisioning', 'abort_untouched'): 'available',
    ('provisioning', 'release'): 'dirty',
    ('assigned', 'release'): 'dirty',
    ('dirty', 'clean'): 'cleaning',
    ('dirty', 'accept'): 'available',
    ('dirty', 'adopt'): 'assigned',
    ('cleaning', 'clean_passed'): 'available',
    ('cleaning', 'clean_interrupted'): 'dirty',
    ('cleaning', 'adopt'): 'assigned',
}


class DeviceTest(base.BaseTestCase):

    def test_every_pair(self):
        legal = 0
        for state in device.DeviceState:
            for event in device.DeviceEvent:
                if (state, event) in LEGAL:
                    legal += 1
                    self.assertEqual(
                        LEGAL[state, event],
                        device.next_state(state, event))
                else:
                    self.assertRaises(
                        exception.InvalidTransition,
                        device.next_state, state, event)
        self.assertEqual(len(LEGAL), legal)

    def test_table_cannot_be_changed(self):
        with self.assertRaises(TypeError):
            device.TRANSITIONS['a', 'b'] = 'c'

    def test_only_a_free_healthy_device_is_offered(self):
        for state, kind, present, managed in itertools.product(
                device.DeviceState, (None, *device.HoldKind), (True, False),
                (True, False)):
            self.assertEqual(
                state == 'available' and kind is None and present and managed,
                device.is_claimable(
                    state, holds={kind} - {None}, present=present,
                    managed=managed))

    def test_shown_states(self):
        def shown(state, **facts):
            return device.shown_state(state, **{
                'holds': (), 'present': True, 'managed': True, **facts})
        self.assertEqual('available', shown('available'))
        self.assertEqual('disabled', shown(
            'available', holds={'disabled'}))
        self.assertEqual('missing', shown('available', present=False))
        self.assertEqual('unmanaged', shown('available', managed=False))
        self.assertEqual('dirty', shown('dirty', holds={'disabled'}))
        self.assertEqual('retired', shown(
            'available', present=False, holds={'disabled', 'retired'},
            managed=False))
        for kind in ('quarantined', 'failed', 'identity_changed'):
            for state in ('available', 'dirty', 'cleaning'):
                self.assertEqual('quarantined', shown(state, holds={kind}))
        # Who holds a card is never hidden.
        self.assertEqual('assigned', shown(
            'assigned', present=False, holds=set(device.HoldKind),
            managed=False))
