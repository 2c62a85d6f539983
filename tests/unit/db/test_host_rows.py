# SPDX-License-Identifier: Apache-2.0
"""Tests of the rows of a host: how they are read, changed and stored."""

import dataclasses

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import ledger
from tests.fixtures import clocks
from tests.fixtures import hosts
from tests.unit.conductor import base as conductor_base
from tests.unit.conductor import vgpu_base

PF = vgpu_base.PF
vf = vgpu_base.vf
_E = device_rules.DeviceEvent


class LoadCase(vgpu_base.VGPUTestCase):

    def load(self, *hosts):
        with self.db.reader() as session:
            found = host_rows.load(session, [
                host_db.get(session, host) for host in hosts])
            return [[self.names(group) for group in rows.groups]
                    for rows in found.values()]

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
            [group] = host_rows.load_one(
                session, host_db.get(session, 'h1')).groups
            self.assertEqual(
                session.execute(
                    sa.select(*(tables.TYPES.c[field.name] for field
                                in dataclasses.fields(group.types[0])))
                    .order_by(tables.TYPES.c.id)).tuples().all(),
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


class RowsCase(vgpu_base.VGPUTestCase):
    """Base class of tests that read and store the rows of h1."""

    functions = (PF, *(vf(PF, index) for index in range(2)))

    def rows(self):
        with self.db.reader() as session:
            return host_rows.load_one(session, host_db.get(session, 'h1'))

    def store(self, rule):
        """Store what a rule makes of the rows; return the rows of both."""
        with self.db.writer() as session:
            host = host_db.lock(session, 'h1')
            before = host_rows.load_one(session, host)
            return host_rows.store(session, before, rule(before))

    def assert_same(self, expected, rows):
        self.assertEqual(
            (dict(expected.by_id), list(expected.assignments),
             [found._replace(id=0) for found in expected.holds],
             list(expected.bare_groups)),
            (dict(rows.by_id), list(rows.assignments),
             [found._replace(id=0) for found in rows.holds],
             list(rows.bare_groups)))


class ValueTest(RowsCase):
    """Tests of rows that nobody has stored."""

    def test_rows_say_what_belongs_together(self):
        rows = self.rows()
        gpu, first, second = rows.devices
        self.assertEqual([first, second], list(rows.children(gpu)))
        self.assertEqual([gpu, first, second], list(rows.with_vfs(gpu)))
        self.assertIs(gpu, rows.gpu_of(second))
        self.assertIs(gpu, rows.gpu_of(gpu))
        self.assertIs(first, rows.device(first.uuid))
        self.assertEqual('T4', rows.group_of(first).variant.name)
        self.assertRaises(exception.NotFound, rows.device, 'none')
        self.assertEqual({}, rows.types_in_use)

    def test_policy_of_a_device_is_that_of_its_variant(self):
        rows = self.rows()
        gpu = rows.devices[0]
        self.assertEqual(rows.groups[0].variant.cleaning_policy,
                         rows.cleaning_policy(gpu))
        [group] = rows.bare_groups
        for policy, value in (('none', group.id), ('default', None)):
            other = rows.put_groups([dataclasses.replace(
                group, variant=dataclasses.replace(
                    group.variant, cleaning_policy='none'))])
            self.assertEqual(policy, other.cleaning_policy(
                dataclasses.replace(gpu, group_id=value)))

    def test_used_devices_have_their_types(self):
        claim = self.ask('i1', Q4=1)
        self.assertEqual(
            {claim.assignments[0].stable_id: 'T4-4Q'},
            self.rows().types_in_use)

    def test_changed_device_changes_with_its_assignment_and_group(self):
        self.ask('i1', Q4=1)
        before = self.rows()
        [assignment] = before.assignments
        after = before.change(assignment.device, address='0000:99:00.0')
        [now] = after.assignments
        self.assertEqual('0000:99:00.0', now.device.address)
        self.assertIs(now.device, after.now(assignment.device))
        self.assertIn(now.device, after.groups[0].devices)
        self.assertEqual([now], list(after.groups[0].assignments))
        self.assertIs(before, before.put(*before.devices))

    def test_hold_of_a_gpu_holds_its_vfs_until_released(self):
        before = self.rows()
        gpu, vf1, _ = before.devices
        held = before.hold(vf1, device_rules.HoldKind.FAILED, 'r').hold(
            gpu, device_rules.HoldKind.DISABLED, 'r', 'a')
        self.assertEqual(
            [{'disabled'}, {'disabled', 'failed'}, {'disabled'}],
            [device.holds for device in held.devices])
        self.assertEqual(['failed'], list(held.holds_of(vf1)))
        self.assertIs(held,
                      held.hold(gpu, device_rules.HoldKind.DISABLED, 'again'))
        free = held.unhold(gpu, [device_rules.HoldKind.DISABLED])
        self.assertEqual([set(), {'failed'}, set()],
                         [device.holds for device in free.devices])

    def test_new_part_of_a_held_gpu_is_held(self):
        rows = self.rows()
        gpu, vf1, _ = rows.devices
        held = rows.hold(gpu, device_rules.HoldKind.DISABLED, None)
        held = held.put(dataclasses.replace(
            vf1, id=held.new_id(), uuid='new', stable_id='new'))
        self.assertEqual({'disabled'}, held.device('new').holds)

    def test_hold_of_a_gpu_is_a_change_of_the_gpu_alone(self):
        before = self.rows()
        gpu, vf1, _ = before.devices
        after = before.hold(gpu, device_rules.HoldKind.FAILED, None).change(
            vf1, clean_token='t')
        self.assertEqual(
            [(set(), {'failed'}), ({'failed'}, {'failed'})],
            [(old.holds, now.holds)
             for old, now in host_rows.changed(before, after)])

    def test_event_that_a_state_does_not_have_is_refused(self):
        rows = self.rows()
        self.assertRaisesRegex(
            exception.InvalidTransition, 'h1 .*it cannot be', rows.apply,
            rows.devices[1], _E.ACTIVATE)

    def test_what_happened_stays_in_order(self):
        rows = self.rows()
        gpu, vf1, _ = rows.devices
        rows = rows.note('clean', [gpu, vf1], 'd').note('accept', []).record(
            gpu, ledger.Verdict.ACCEPTED, 'why', 'who').note('accept', [vf1])
        self.assertEqual(
            [('clean', 2, 'd'), ('accept', 1, None)],
            [(event.kind, len(event.objects), event.detail)
             for event in rows.events])
        self.assertEqual([(gpu, 'accepted', 'why', 'who')], [
            tuple(verdict) for verdict in rows.verdicts])


class StoreTest(RowsCase):
    """Tests that what is stored is what is read."""

    def test_changes_of_all_rows_come_back(self):
        self.ask('i1', Q4=1)

        def rule(rows):
            gpu, _, vf2 = rows.devices
            [assignment] = rows.assignments
            held = rows.change(gpu, reason='x', errors='{}').apply(
                assignment.device, _E.ACTIVATE).put_assignments(
                    dataclasses.replace(
                        assignment, lease_expires_at=None)).hold(
                            vf2, device_rules.HoldKind.FAILED, 'r', 'a')
            return held.put_groups([
                dataclasses.replace(
                    group, own_policy=True, types=[
                        dataclasses.replace(row, enabled=not row.enabled)
                        for row in group.types])
                for group in rows.bare_groups])
        stored = self.store(rule)
        now = self.rows()
        self.assert_same(dataclasses.replace(stored, holds=[
            found._replace(since=now.holds[0].since)
            for found in stored.holds]), now)
        self.assertEqual('assigned', now.assignments[0].device.state)

    def test_new_gpu_comes_with_its_parts_and_assignment(self):
        def rule(rows):
            gpu, vf1, _ = rows.devices
            new = dataclasses.replace(
                gpu, id=rows.new_id(), uuid='new', stable_id='new')
            rows = rows.put(new)
            child = dataclasses.replace(
                vf1, id=rows.new_id(), uuid='child', stable_id='new/vf0',
                parent_id=new.id)
            rows = rows.put(child).change(vf1, parent_id=new.id)
            return rows.assign([host_rows.Assignment(
                device=child, uuid='a', host_id=rows.host.id,
                instance_uuid='i9',
                role='instance', migration_uuid='', ordinal=0, vgpu_type='t',
                resource_class='c', request='', allocated=False,
                lease_expires_at=1.0, host_generation=1, source_host=None,
                project_id='p', user_id='u', flavor='f', exact=False,
                claimed_at=clocks.now())]).hold(
                    new, device_rules.HoldKind.DISABLED, None)
        self.store(rule)
        now = self.rows()
        gpu, child = now.device('new'), now.device('child')
        self.assertEqual(2, len(now.children(gpu)))
        self.assertEqual((gpu.id, {'disabled'}),
                         (child.parent_id, child.holds))
        self.assertEqual(child, now.assignments[0].device)
        self.assertTrue(all(id > 0 for id in now.by_id))

    def test_place_can_be_left_and_taken_at_once(self):
        def rule(rows):
            gpu = rows.devices[0]
            rows = rows.change(gpu, stable_id='left', present=False)
            return rows.put(dataclasses.replace(
                gpu, id=rows.new_id(), uuid='new'))
        self.store(rule)
        self.assertEqual('new', self.rows().by_stable_id[PF.id].uuid)

    def test_group_can_leave_and_come_back(self):
        before = self.rows()
        [group] = before.bare_groups
        self.store(lambda rows: rows.put(*(
            dataclasses.replace(device, group_id=None)
            for device in rows.devices)).put_groups([]))
        self.assertEqual([], list(self.rows().bare_groups))
        self.assertEqual({None}, {
            device.group_id for device in self.rows().devices})
        new = dataclasses.replace(group, id=-1, types=[
            dataclasses.replace(row, id=0) for row in group.types])
        self.store(lambda rows: rows.put(*(
            dataclasses.replace(device, group_id=-1)
            for device in rows.devices)).put_groups([new]))
        [found] = self.rows().groups
        self.assertEqual(3, len(found.devices))
        self.assertEqual([row.vgpu_type for row in group.types],
                         [row.vgpu_type for row in found.types])

    def test_stale_device_is_refused(self):
        before = self.rows()
        self.store(lambda rows: rows.apply(rows.devices[1], _E.CLAIM))
        with self.assertRaisesRegex(exception.Conflict, 'same time'):
            with self.db.writer() as session:
                host_rows.store(session, before, before.apply(
                    before.devices[1], _E.CLAIM))

    def test_no_change_is_no_statement(self):
        rows = self.rows()
        with self.db.writer() as session, self.statements() as found:
            host_rows.store(session, rows, rows)
        self.assertEqual([], [text for text in found if text != 'BEGIN'])
