# SPDX-License-Identifier: Apache-2.0
"""Tests of the state table, written out a second time."""

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import device

LEGAL = {
    ('available', 'claim'): 'provisioning',
    ('available', 'suspect'): 'quarantined',
    ('provisioning', 'activate'): 'assigned',
    ('provisioning', 'abort_untouched'): 'available',
    ('provisioning', 'abort_touched'): 'dirty',
    ('provisioning', 'fault'): 'quarantined',
    ('assigned', 'release'): 'dirty',
    ('assigned', 'fault'): 'quarantined',
    ('dirty', 'clean'): 'cleaning',
    ('dirty', 'suspect'): 'quarantined',
    ('cleaning', 'clean_passed'): 'available',
    ('cleaning', 'clean_failed'): 'quarantined',
    ('cleaning', 'clean_interrupted'): 'dirty',
    ('quarantined', 'operator_release'): 'dirty',
    ('available', 'distrust'): 'dirty',
    ('available', 'adopt'): 'assigned',
    ('dirty', 'adopt'): 'assigned',
    ('cleaning', 'adopt'): 'assigned',
    ('quarantined', 'adopt'): 'assigned',
    ('retired', 'adopt'): 'assigned',
    ('available', 'quarantine'): 'quarantined',
    ('dirty', 'quarantine'): 'quarantined',
    ('cleaning', 'quarantine'): 'quarantined',
    ('available', 'retire'): 'retired',
    ('dirty', 'retire'): 'retired',
    ('cleaning', 'retire'): 'retired',
    ('quarantined', 'retire'): 'retired',
    ('retired', 'operator_release'): 'dirty',
    ('dirty', 'accept'): 'available',
    ('quarantined', 'accept'): 'available',
    ('retired', 'accept'): 'available',
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
        for state in device.DeviceState:
            for enabled in (True, False):
                for present in (True, False):
                    for managed in (True, False):
                        self.assertEqual(
                            state == 'available' and enabled and present
                            and managed,
                            device.is_claimable(state, enabled=enabled,
                                           present=present,
                                           managed=managed))

    def test_shown_states(self):
        def shown(state, **facts):
            return device.shown_state(state, **{
                'enabled': True, 'present': True, 'managed': True, **facts})
        self.assertEqual('available', shown('available'))
        self.assertEqual('disabled', shown('available', enabled=False))
        self.assertEqual('missing', shown('available', present=False))
        self.assertEqual('unmanaged', shown('available', managed=False))
        self.assertEqual('dirty', shown('dirty', enabled=False))
        self.assertEqual('retired', shown(
            'retired', present=False, enabled=False, managed=False))
        # Who holds a card is never hidden.
        self.assertEqual('assigned', shown(
            'assigned', present=False, enabled=False, managed=False))
