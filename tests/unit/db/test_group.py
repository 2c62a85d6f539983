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
"""Tests of group rows and the rows that belong to them."""

from gpgpu_plugin.conductor import releases
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host as host_db
from tests.fixtures import hosts
from tests.unit.conductor import base as conductor_base
from tests.unit.conductor import vgpu_base
from tests.unit.db import base

PF = vgpu_base.PF
vf = vgpu_base.vf


class FindTest(base.DatabaseTestCase):

    def setUp(self):
        super().setUp()
        self.hosts = (base.host('h2', id=1), base.host('h1', id=2),
                      base.host('h0', id=3, deleted=3))
        self.variants = base.variant('A'), base.variant('B')
        self.add(*self.hosts, *self.variants)
        self.add(base.group(self.hosts[0], self.variants[1], b=True),
                 base.group(self.hosts[1], self.variants[0], a=True, c=False),
                 base.group(self.hosts[0], self.variants[0], a=False),
                 base.group(self.hosts[2], self.variants[0], a=True))

    def test_groups_of_hosts_come_with_their_types(self):
        with self.db.reader() as session:
            self.assertEqual(
                [('h2-B', ['b']), ('h1-A', ['a', 'c']), ('h2-A', ['a'])],
                [(group.provider_uuid,
                  [row.vgpu_type for row in group.types])
                 for group in group_db.of_hosts(session, [1, 2])])
            self.assertEqual([], group_db.of_hosts(session, []))

    def test_groups_of_a_variant_are_those_of_deleted_hosts_too(self):
        with self.db.reader() as session:
            self.assertEqual({'h1-A', 'h2-A', 'h0-A'}, {
                group.provider_uuid for group in group_db.of_variant(
                    session, self.variants[0].id)})

    def test_groups_of_live_hosts_are_listed_by_name(self):
        for host, variant, expected in (
                (None, None, ['h1-A', 'h2-B', 'h2-A']),
                ('h2', None, ['h2-B', 'h2-A']), (None, 'B', ['h2-B']),
                ('h2', 'A', ['h2-A']), ('h0', None, []), ('h1', 'B', [])):
            with self.subTest(host=host, variant=variant):
                with self.db.reader() as session:
                    found = group_db.with_host_names(session, host, variant)
                    self.assertEqual(expected, [
                        group.provider_uuid for _, group in found])
                    for name, group in found:
                        self.assertEqual(
                            name, group.provider_uuid.partition('-')[0])


class LoadCase(vgpu_base.VGPUTestCase):

    def load(self, *hosts, active=None):
        with self.db.reader() as session:
            ids = [host_db.get(session, host).id for host in hosts]
            found = group_db.load(
                session, ids, active(session) if active else None)
            return [[(
                rows.group.variant.name,
                [row.stable_id for row in rows.devices],
                [row.stable_id for row in rows.foreign_vgpus],
                [row.uuid for row in rows.assignments])
                for rows in found[host_id]] for host_id in ids]


class LoadTest(LoadCase):

    def test_devices_and_active_assignments_are_with_their_group(self):
        releases.release(self.db, conductor_base.uuids(self.ask('i0', Q4=1)))
        active = conductor_base.uuids(self.ask('i1', Q4=2))
        [[(name, devices, foreign, assignments)]] = self.load('h1')
        self.assertEqual(('T4', [], active), (name, foreign, assignments))
        self.assertEqual(
            [self.functions[0].id,
             *(f'{self.functions[0].id}/mdev{number}' for number in range(3)),
             self.functions[1].id],
            devices)

    def test_hosts_do_not_share_rows(self):
        self.report_second_host(self.functions[:1])
        active = conductor_base.uuids(self.ask('i1', Q4=1))
        [[(_, _, _, first)], [(_, devices, _, second)]] = self.load(
            'h1', 'h2')
        self.assertEqual((active, []), (first, second))
        self.assertEqual([self.functions[0].id], devices)

    def test_assignments_that_the_caller_has_are_not_read_again(self):
        self.ask('i1', Q4=1)
        with self.statements() as found:
            [[(_, _, _, assignments)]] = self.load(
                'h1', active=lambda session: [])
        self.assertEqual([], assignments)
        self.assertFalse([statement for statement in found
                          if 'FROM assignments' in statement])
        with self.db.reader() as session:
            self.assertEqual(1, len(assignment_db.of_instance(
                session, 'i1')))

    def test_host_without_group_has_none(self):
        self.report_second_host([conductor_base.function(0)])
        self.assertEqual([[]], self.load('h2'))


class ForeignVFTest(LoadCase):

    functions = (PF, *(vf(PF, index) for index in range(3)))

    def test_vf_outside_the_group_counts_only_if_it_has_a_vgpu(self):
        # There may be hundreds of others, which nobody can assign.
        hosts.store(self.db, conductor_base.scan([
            PF, *(vf(PF, number, owner='Cyborg') for number in range(3)),
            vf(PF, 3, owner='Cyborg', existing_vgpus=('234',))]))
        self.assertEqual(
            [[('T4', [PF.id], [f'{PF.id}/vf3'], [])]], self.load('h1'))
