# SPDX-License-Identifier: Apache-2.0
"""Tests of group rows and the rows that belong to them."""

import dataclasses

from gpgpu_plugin.conductor import releases
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

    def test_hosts_with_a_group_of_a_variant_are_in_order(self):
        with self.db.reader() as session:
            first, second, third = group_db.host_ids_of_variant(
                session, self.variants[0].id, 0)
            self.assertLess(first, second)
            self.assertEqual([second], group_db.host_ids_of_variant(
                session, self.variants[0].id, first, 1))
            self.assertEqual([], group_db.host_ids_of_variant(
                session, self.variants[0].id, third))


class LoadCase(vgpu_base.VGPUTestCase):

    def load(self, *hosts):
        with self.db.reader() as session:
            ids = [host_db.get(session, host).id for host in hosts]
            found = group_db.load(session, ids)
            return [[self.names(group) for group in found[host_id].groups]
                    for host_id in ids]

    def names(self, rows):
        return (rows.variant.name,
                [row.stable_id for row in rows.devices],
                [row.stable_id for row in rows.foreign_vgpus],
                [row.uuid for row in rows.assignments])


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

    def test_types_come_with_their_stored_capacities(self):
        with self.db.reader() as session:
            host = host_db.get(session, 'h1')
            [group] = group_db.load(session, [host.id])[host.id].groups
            [of_group] = group_db.of_hosts(session, [host.id])
            self.assertEqual(
                [(row.id, row.vgpu_type, row.enabled, row.listed,
                  row.max_vgpu_per_pgpu, row.max_capacity,
                  row.remaining_capacity) for row in of_group.types],
                [dataclasses.astuple(row) for row in group.types])

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


class AfterTest(LoadCase):
    """Tests that rows after a change are those that would be read."""

    functions = (PF, *(vf(PF, index) for index in range(2)))

    def test_devices_and_assignments_of_a_change_replace_those_before(self):
        with self.db.reader() as session:
            host = host_db.get(session, 'h1')
            before = group_db.load(session, [host.id])[host.id]
        claim = self.ask('i1', Q4=1)
        with self.db.reader() as session:
            claimed = group_db.load(session, [host.id])[host.id]
        [assignment] = claimed.assignments
        self.check(claimed, before.after(
            [assignment.device], claimed=[assignment]))
        releases.abort(
            self.db, conductor_base.uuids(claim), touched=False, fault=None)
        with self.db.reader() as session:
            ended = group_db.load(session, [host.id])[host.id]
        [device] = [device for device in ended.devices
                    if device.id == assignment.device.id]
        self.check(ended, claimed.after([device], ended=[assignment.uuid]))

    def check(self, expected, rows):
        self.assertEqual(
            (expected.devices, expected.assignments),
            (rows.devices, rows.assignments))
        self.assertEqual([self.names(group) for group in expected.groups],
                         [self.names(group) for group in rows.groups])

    def test_foreign_vgpu_that_is_gone_is_left_out(self):
        hosts.store(self.db, conductor_base.scan([
            PF, vf(PF, 3, owner='Cyborg', existing_vgpus=('234',))]))
        with self.db.reader() as session:
            host = host_db.get(session, 'h1')
            rows = group_db.load(session, [host.id])[host.id]
        [group] = rows.groups
        [foreign] = group.foreign_vgpus
        [group] = rows.after(
            [dataclasses.replace(foreign, vgpu_type=None)]).groups
        self.assertEqual([], list(group.foreign_vgpus))

    def test_new_device_joins_the_group(self):
        with self.db.reader() as session:
            host = host_db.get(session, 'h1')
            rows = group_db.load(session, [host.id])[host.id]
        new = dataclasses.replace(rows.devices[0], id=99, stable_id='new')
        [group] = rows.after([new]).groups
        self.assertEqual('new', group.devices[-1].stable_id)
