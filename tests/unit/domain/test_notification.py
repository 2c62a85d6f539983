# SPDX-License-Identifier: Apache-2.0
"""Tests of which notification a change is."""

from oslotest import base

from gpgpu_plugin.domain import device
from gpgpu_plugin.domain import event

_Type = event.EventType
_State = device.DeviceState


class OfStateTest(base.BaseTestCase):

    def test_only_a_failed_cleaning_is_a_cleaning_error(self):
        for before in device.DeviceState:
            self.assertIs(
                _Type.DEVICE_CLEAN_ERROR if before is _State.CLEANING
                else _Type.DEVICE_QUARANTINE,
                event.event_type_of_state(before, device.QUARANTINED))
            for after in (*device.DeviceState, device.RETIRED):
                self.assertIs(_Type.DEVICE_UPDATE,
                              event.event_type_of_state(before, after))


class OfRefusalTest(base.BaseTestCase):

    def test_no_host_with_capacity_left_is_no_capacity(self):
        for reasons in (['not_enough_available'], ['driver_has_no_room'],
                        ['host_draining', 'not_enough_available'],
                        ['no_candidate']):
            self.assertIs(_Type.REQUEST_NO_CAPACITY,
                          event.event_type_of_refusal(reasons, 0))

    def test_refusal_that_leaves_hosts_is_none(self):
        for hosts_left in (1, None):
            self.assertIs(_Type.REQUEST_REFUSE, event.event_type_of_refusal(
                ['not_enough_available'], hosts_left))

    def test_refusal_for_another_reason_is_none(self):
        self.assertIs(_Type.REQUEST_REFUSE, event.event_type_of_refusal(
            ['no_such_group', 'topology_same_numa'], 0))


class PrioritiesTest(base.BaseTestCase):

    def test_each_type_has_a_priority(self):
        self.assertEqual(set(_Type), set(event.PRIORITIES))
