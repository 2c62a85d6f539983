# SPDX-License-Identifier: Apache-2.0
"""Tests of how holds begin and end."""

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import holds
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import device as device_rules
from tests.fixtures import notified
from tests.unit.conductor import base
from tests.unit.conductor import test_cleaning

_K = device_rules.HoldKind


class HoldTest(test_cleaning.CleaningCase):

    functions = (base.function(0),)

    def call(self, function, *arguments):
        """Call a function of holds with the only device, locked."""
        def work(session):
            host = host_db.lock(session, 'h1')
            before = host_rows.load_one(session, host)
            [device] = before.devices
            found = function(before, device, *arguments)
            rows = found[0] if isinstance(found, tuple) else found
            settle.settle(session, before,
                          holds.clean_again(rows))
            return rows is not before
        return self.db.write(work)

    def shown(self):
        [device] = device_admin.list_all(self.db, include_retired=True)
        return device

    def test_each_kind_alone_keeps_the_device_from_being_claimed(self):
        for kind in _K:
            self.assertTrue(self.call(holds.add, kind, 'why', 'op'))
            self.assertFalse(self.call(holds.add, kind, 'again', 'op'))
            [text] = self.shown().holds
            self.assertRegex(text, f'^{kind} since .*Z by op: why$')
            self.assertRaises(exception.ClaimDenied, self.claim)
            self.assertFalse(self.call(
                holds.remove, set(_K) - {kind}, 'op'))
            self.assertTrue(self.call(holds.remove, {kind}, 'op'))
            self.assertEqual('dirty' if kind in device_rules.WITHDRAWING
                             else 'available', self.shown().state)
            self.clean_all()
        self.claim()

    def test_what_withdraws_a_device_ends_its_cleaning(self):
        for kind in _K:
            releases.release(self.db, base.uuids(self.boot()))
            [task] = cleaning.tasks(self.db, 'h1')
            self.start(task)
            self.call(holds.add, kind, 'why')
            if kind in device_rules.WITHDRAWING:
                # Neither its verdict counts, nor is it begun once more.
                self.assertRaises(exception.Conflict, self.finish, task)
                self.assertRaises(exception.Conflict, self.start, task)
                self.assertEqual((), cleaning.tasks(self.db, 'h1'))
            else:
                self.finish(task)
            self.call(holds.remove, {kind}, 'op')
            self.clean_all()
            self.assertEqual('available', self.shown().state, kind)

    def test_notifications_never_say_that_it_is_available_uncleaned(self):
        self.db.publish_as('gpgpu')
        for kind in (_K.QUARANTINED, _K.FAILED, _K.IDENTITY_CHANGED):
            self.call(holds.add, kind, 'why')
            self.call(holds.remove, {kind}, 'op')
            self.clean_all()
        found = [message['payload']['gpgpu_object.data']
                 for message in notified.messages(self.db)]
        self.assertEqual(
            [('available', 'quarantined'), ('quarantined', 'dirty'),
             ('dirty', 'cleaning'), ('cleaning', 'available')] * 3,
            [(data['old_state'], data['state']) for data in found])

    def test_hold_of_an_assigned_device_waits(self):
        granted = self.boot()
        for kind in _K:
            self.call(holds.add, kind, 'why')
        self.assertEqual('assigned', self.shown().shown_state)
        releases.release(self.db, base.uuids(granted))
        self.assertEqual('retired', self.shown().state)
        for kind, shown in ((_K.RETIRED, 'quarantined'),
                            (_K.QUARANTINED, 'quarantined'),
                            (_K.FAILED, 'quarantined'),
                            (_K.IDENTITY_CHANGED, 'dirty')):
            self.call(holds.remove, {kind}, 'op')
            self.assertEqual(shown, self.shown().state)
        self.clean_all()
        self.assertEqual('disabled', self.shown().shown_state)
