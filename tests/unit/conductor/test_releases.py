#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Tests of releasing assignments."""

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import models
from tests.unit.conductor import base


class EndTest(base.ConductorTestCase):

    def test_abort(self):
        for touched, state in ((False, 'available'), (True, 'dirty')):
            granted = self.claim(1, instance=f'i-{touched}')
            releases.abort(self.db, base.uuids(granted), touched=touched,
                         fault=None)
            self.assertEqual(8, self.states().get(state, 0)
                             + (7 if touched else 0))
        granted = self.claim(1, instance='i3')
        releases.abort(self.db, base.uuids(granted), touched=True,
                     fault='bind failed')
        [device] = device_admin.list_all(self.db, state='quarantined')
        self.assertEqual('bind failed', device.reason)

    def test_late_end_never_touches_the_next_owner(self):
        old = base.uuids(self.boot(8))
        releases.release(self.db, old)
        self.clean_all()
        new = self.boot(8, instance='i2')
        for _ in range(2):
            releases.release(self.db, old)
            releases.abort(self.db, old, touched=True, fault='late')
        self.assertEqual({'assigned': 8}, self.states())
        self.assertEqual(len(new.assignments),
                         len(claims.of_instance(self.db, 'i2')))

    def test_assignment_that_ended_says_when(self):
        granted = self.boot(1)
        # MariaDB stores whole seconds.
        before = event_db.now().replace(microsecond=0)
        releases.release(self.db, base.uuids(granted))
        with self.db.reader() as session:
            row = session.scalars(sa.select(models.Assignment)).one()
            self.assertIsNone(row.active)
            self.assertLessEqual(before, row.ended_at)
            self.assertLessEqual(row.claimed_at, row.ended_at)

    def test_assignments_of_two_hosts_are_refused_and_stay(self):
        self.report_second_host()
        both = [*base.uuids(self.claim(1)),
                *base.uuids(self.claim(1, host='h2'))]
        for refused in (
                lambda: claims.activate(self.db, both),
                lambda: releases.release(self.db, both),
                lambda: releases.abort(
                    self.db, both, touched=False, fault=None)):
            exc = self.assertRaises(exception.Invalid, refused)
            self.assertIn('one host', str(exc))
        self.assertEqual({'provisioning'}, {
            assignment.state
            for assignment in claims.of_instance(self.db, 'i1')})

    def test_unknown_assignments(self):
        self.assertIsNone(releases.release(self.db, ['nobody']))
        self.assertIsNone(releases.abort(
            self.db, ['nobody'], touched=False, fault=None))
        self.assertRaises(
            exception.NotFound, claims.activate, self.db, ['nobody'])

    def test_activate_of_an_ended_claim(self):
        granted = base.uuids(self.claim(1))
        releases.abort(self.db, granted, touched=False, fault=None)
        self.assertRaises(
            exception.NotFound, claims.activate, self.db, granted)

    def test_abort_of_an_active_one_is_refused(self):
        granted = base.uuids(self.boot(1))
        self.assertRaises(
            exception.Conflict, releases.abort, self.db, granted,
            touched=False, fault=None)
        self.assertEqual({'assigned': 1, 'available': 7}, self.states())
