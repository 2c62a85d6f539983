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
"""Tests of mapping rows to values, in a constant number of statements."""

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.objects import admin
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


class LoadTest(vgpu_base.VGPUTestCase):

    def load(self):
        with self.db.reader() as session:
            host = host_db.get(session, 'h1')
            [group] = capacity.load(session, [host.id])[host.id]
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

    def test_loading_costs_three_statements(self):
        with self.db.reader() as session:
            host = host_db.get(session, 'h1')
            with self.statements() as found:
                capacity.load(session, [host.id])
        self.assertEqual(3, len(found), found)


class WithAssignmentsTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        variant_admin.create(self.db, admin.VariantInfo(
            name='A2', vendor='10de', device='25b6'))
        hosts.store(self.db, base.scan((
            base.function(0), base.function(1, device='25b6'))))

    def test_assignment_of_another_groups_device_is_left_out(self):
        self.claim()
        with self.db.reader() as session:
            host = host_db.get(session, 'h1')
            added = assignment_db.of_hosts(session, [host.id])
            loaded = {
                group.value.variant.name: group for group
                in capacity.load(session, [host.id], [])[host.id]}
            self.assertIs(
                loaded['A2'], loaded['A2'].with_assignments(added))
            self.assertEqual(
                base.uuids(self.claim()), [
                    row.uuid for row in
                    loaded['H100'].with_assignments(added).value.assignments])


class StatementsTest(base.ConductorTestCase):
    """Tests of the number of SQL statements of a claim and a report."""

    def test_claim_of_a_gpu(self):
        with self.statements() as found:
            self.claim()
        self.assertEqual(10, len(found), found)

    def test_report_of_nothing_new(self):
        with self.statements() as found:
            reports.report(self.db, base.scan(base.EIGHT, number=1))
        self.assertLessEqual(len(found), 9, found)
