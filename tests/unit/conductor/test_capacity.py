# SPDX-License-Identifier: Apache-2.0
"""Tests of mapping rows to values, in a constant number of statements."""

import dataclasses

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.domain import vgpu
from tests.fixtures import cleaned
from tests.fixtures import rows
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


class LoadTest(vgpu_base.VGPUTestCase):

    def load(self):
        with self.db.reader() as session:
            host = host_db.get(session, 'h1')
            [group] = capacity.load(session, [host])[host.id]
            return group.value

    def test_values_are_those_of_the_rows(self):
        claim = self.ask(Q4=1)
        value = self.load()
        self.assertEqual('T4', value.variant.name)
        self.assertEqual([gpu.id for gpu in self.functions], [
            gpu.id for gpu in value.gpus])
        [row] = value.children[claim.assignments[0].stable_id.partition(
            '/mdev')[0]]
        self.assertEqual(('provisioning', 'T4-4Q', True), (
            row.state, row.vgpu_type, row.is_managed))
        self.assertEqual(base.uuids(claim), [
            assigned.uuid for assigned in value.assignments])

    def test_steps_of_a_vf_depend_on_whether_it_makes_mdevs(self):
        with self.db.reader() as session:
            gpu = rows.of_host(session, 'h1').devices[0]
        for mechanism, expected in (
                (vgpu.VGPUMechanism.MDEV, ('host-driver',)),
                (None, ('host-driver', 'reset', 'settings'))):
            vf = dataclasses.replace(
                gpu, stable_id='/devices/x/vf0',
                cleaned_steps='host-driver',
                vgpu_capability=mechanism and device_db.dump(
                    vgpu.VGPUCapability(mechanism=mechanism, types=())))
            self.assertEqual(
                expected, capacity.required_steps(vf, 'scrub'))
            self.assertIs(mechanism is not None,
                          capacity.is_proven(vf, 'scrub'))

    def test_loading_costs_two_statements(self):
        with self.db.reader() as session:
            host = host_db.get(session, 'h1')
            with self.statements() as found:
                capacity.load(session, [host])
        self.assertEqual(2, len(found), found)


class StatementsTest(base.ConductorTestCase):
    """Tests of the number of SQL statements of each step.

    A transaction of its own finds the host of what is named by a UUID.
    """

    def count(self, expected, step, *args, **kwargs):
        with self.statements() as found:
            result = step(*args, **kwargs)
        # SQLite alone has a statement for the beginning.
        found = [statement for statement in found if statement != 'BEGIN']
        self.assertEqual(expected, len(found), '\n'.join(found))
        return result

    def test_life_of_an_assignment(self):
        for number in (1, 4):
            # Lock, load (2), devices, assignments, events, host, capacities.
            uuids = base.uuids(self.count(
                8, self.claim, number, instance=f'i{number}'))
            # The host; lock, load (2), devices, assignments, their usage
            # (2), events, host.
            self.count(10, claims.activate, self.db, uuids)
            # The same, with one for the usage.
            self.count(9, releases.release, self.db, uuids)
        [task] = cleaning.tasks(self.db, 'h1')[:1]
        # The host; lock, load (2), device, event, host, the end of its chain
        # (2), and in the end the capacities.
        self.count(9, cleaning.started, self.db, task.device_uuid, task.token,
                   'attempt')
        # As above, all variants, and for its record the last assignment, the
        # variant and the record itself.
        self.count(15, cleaning.finished, self.db, task.device_uuid, 'attempt',
                   task.steps, cleaned.results(task.steps))

    def test_claim_that_is_refused_or_repeated_only_reads(self):
        self.claim(8)
        self.count(3, self.claim, 8)
        self.count(3, self.assertRaises, exception.ClaimDenied, self.claim,
                   1, instance='i2')

    def test_report_of_nothing_new(self):
        scan = base.scan(base.EIGHT, number=1)
        with self.statements() as found:
            reports.report(self.db, scan)
        # In its own transaction it is looked for; the last one is written.
        self.assertLessEqual(len(found), 15, found)
        self.count(2, reports.report, self.db, scan)
