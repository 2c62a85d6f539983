# SPDX-License-Identifier: Apache-2.0
"""Tests of claims: idempotent, refused with a reason, atomic."""

import dataclasses
from unittest import mock

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain.allocation import request as request_rules
from gpgpu_plugin.objects import admin
from tests.unit.conductor import base


class ClaimTest(base.ConductorTestCase):

    def test_life_of_a_claim(self):
        granted = self.claim(2)
        self.assertEqual(2, len({
            assignment.device_uuid for assignment in granted.assignments}))
        self.assertEqual({'provisioning': 2, 'available': 6}, self.states())
        for assignment in granted.assignments:
            self.assertIsNotNone(assignment.lease_expires_at)
        # Backed by an allocation: Placement counts them as used.
        self.assertEqual((8, 0), self.offered(granted.inventory))

        claims.activate(self.db, base.uuids(granted))
        self.assertEqual({'assigned': 2, 'available': 6}, self.states())
        self.assertEqual({None}, {
            assignment.lease_expires_at for assignment in claims.of_instance(
                self.db, 'i1')})

        inventory = releases.release(self.db, base.uuids(granted))
        self.assertEqual({'dirty': 2, 'available': 6}, self.states())
        self.assertEqual((8, 2), self.offered(inventory))
        self.assertEqual((), claims.of_host(self.db, 'h1'))
        self.clean_all()
        self.assertEqual({'available': 8}, self.states())

    def test_same_request_again_gives_the_same_devices(self):
        first, again = self.claim(3), self.claim(3)
        self.assertEqual(first.assignments, again.assignments)
        self.assertEqual(first.inventory, again.inventory)
        claims.activate(self.db, base.uuids(first))
        self.assertEqual(base.uuids(first), base.uuids(self.claim(3)))

    def test_other_request_under_the_same_key_is_refused(self):
        self.claim(3)
        exc = self.assertRaises(exception.ClaimDenied, self.claim, 2)
        self.assertEqual('request_changed', exc.reason)

    def test_later_claim_has_a_higher_generation_of_the_host(self):
        granted = [self.claim_destination(1, 'm1'), self.boot(1),
                   self.claim_destination(1, 'm2'), self.claim(1, 'i2')]
        found = [assignment.host_generation for claim in granted
                 for assignment in claim.assignments]
        self.assertEqual(sorted(set(found)), found)
        # Activation and the same request again change nothing.
        self.assertEqual(found[1], self.claim(
            1).assignments[0].host_generation)

    def test_two_roles_of_one_instance(self):
        first = self.claim(2)
        second = self.claim_destination(2, 'migration-1')
        self.assertEqual(4, len({
            assignment.device_uuid for assignment in
            first.assignments + second.assignments}))

    def test_claim_left_by_a_failed_move_does_not_block_the_next(self):
        left = self.claim_destination(2, 'migration-1')
        moved = self.claim_destination(3, 'migration-2')
        self.assertEqual(5, len({
            assignment.device_uuid for assignment in
            left.assignments + moved.assignments}))

    def test_refusals(self):
        self.boot(5)
        for kwargs, reason, number in (
                ({'count': 4}, 'not_enough_available', '3 available'),
                ({'count': 1, 'host': 'h9'}, 'host_unknown', 'not reported'),
                ({'count': 1, 'variant': 'L40S'}, 'no_such_group',
                 'CUSTOM_GPU_L40S'),
                ({'count': 3,
                  'topology': request_rules.GPUTopology.SAME_SWITCH},
                 'topology_same_switch', '3 of')):
            exc = self.assertRaises(
                exception.ClaimDenied, self.claim,
                instance='i2', **kwargs)
            self.assertEqual(reason, exc.reason)
            self.assertIn(number, exc.kwargs['detail'])
        self.assertEqual({'assigned': 5, 'available': 3}, self.states())

    def test_class_of_somebody_else_is_not_ours(self):
        self.assertEqual((), claims.claim(self.db, dataclasses.replace(
            self.request(), allocated={}, request=request_rules.Request(
                demands=(request_rules.Demand(
                    resource_class='CUSTOM_FPGA', count=1),))),
            lease=60).assignments)

    def test_units_without_a_request_are_denied(self):
        exc = self.assertRaises(
            exception.ClaimDenied, self.claim, 2, allocated=3)
        self.assertEqual('allocation_not_requested', exc.reason)
        self.assertIn('allocated 3 of CUSTOM_GPU_H100', exc.kwargs['detail'])
        self.assertEqual({'available': 8}, self.states())
        # On the source of an evacuation, or of somebody else.
        request = dataclasses.replace(
            self.request(2), allocated={'elsewhere': {'CUSTOM_GPU_H100': 3}})
        self.assertEqual(2, len(claims.claim(
            self.db, request, lease=60).assignments))

    def test_class_of_a_variant_that_the_host_does_not_have_is_denied(self):
        # Nothing but the variant shows that such a class is the plugin's.
        variant_admin.create(self.db, admin.VariantInfo(
            name='A100', vendor='10de', device='20b0',
            resource_class='CUSTOM_ACCELERATOR'))
        exc = self.assertRaises(
            exception.ClaimDenied, claims.claim, self.db,
            dataclasses.replace(self.request(), request=request_rules.Request(
                demands=(request_rules.Demand(
                    resource_class='CUSTOM_ACCELERATOR', count=1),))),
            lease=60)
        self.assertEqual('no_such_group', exc.reason)

    def test_claim_for_a_guest_on_a_numa_node_gets_gpus_of_that_node(self):
        for node, instance in ((1, 'i1'), (0, 'i2')):
            granted = claims.claim(self.db, dataclasses.replace(
                self.request(2, instance), numa_nodes=(node,)), lease=60)
            found = {device.uuid: device.numa_node
                     for device in device_admin.list_all(self.db)}
            self.assertEqual([node, node], [
                found[assignment.device_uuid]
                for assignment in granted.assignments])

    def test_claim_selects_nodes_of_the_guest_with_its_gpus(self):
        self.boot(3)
        asked = dataclasses.replace(
            self.request(2, 'i2'), numa_nodes=(0,), numa_choices=((1,),))
        granted = claims.claim(self.db, asked, lease=60)
        self.assertEqual((1,), granted.numa_nodes)
        # The answer may have been lost.
        self.assertEqual(granted.numa_nodes, claims.claim(
            self.db, asked, lease=60).numa_nodes)
        asked = dataclasses.replace(asked, instance_uuid='i3')
        self.assertEqual((1,), claims.claim(
            self.db, asked, lease=60).numa_nodes)

    def test_claim_for_a_socket_takes_gpus_of_its_other_node(self):
        self.boot(4)
        asked = dataclasses.replace(
            self.request(
                2, 'i2', pci_numa_policy=request_rules.PCINUMAPolicy.SOCKET),
            numa_nodes=(0,))
        exc = self.assertRaises(
            exception.ClaimDenied, claims.claim, self.db, asked, lease=60)
        self.assertEqual('numa_policy_required', exc.reason)
        granted = claims.claim(self.db, dataclasses.replace(
            asked, sockets=((0, 1),)), lease=60)
        self.assertEqual(2, len(granted.assignments))

    def test_assignments_of_a_claim_are_numbered_without_a_gap(self):
        self.claim(3)
        with self.db.reader() as session:
            self.assertEqual([0, 1, 2], session.scalars(sa.select(
                tables.ASSIGNMENTS.c.ordinal).order_by(
                    tables.ASSIGNMENTS.c.id)).all())

    def test_unbacked_units_vanish_from_placement(self):
        granted = self.claim(2, allocated=1)
        self.assertEqual((8, 1), self.offered(granted.inventory))

    def test_disabled_missing_and_unmanaged_are_never_given(self):
        devices = device_admin.list_all(self.db)
        device_admin.set_(self.db, devices[0].uuid, 'op', enabled=False)
        base.hosts.store(self.db, base.scan(
            gpu for gpu in base.EIGHT if gpu.id != devices[1].stable_id))
        given = {assignment.device_uuid
                 for assignment in self.claim(6).assignments}
        self.assertEqual(
            {device.uuid for device in devices[2:]}, given)
        self.assertRaises(
            exception.ClaimDenied, self.claim, 1, instance='i2')

    def test_topology_is_kept(self):
        granted = self.claim(4, topology=request_rules.GPUTopology.SAME_NUMA)
        rows = {device.uuid: device
                for device in device_admin.list_all(self.db)}
        self.assertEqual(1, len({
            rows[assignment.device_uuid].numa_node
            for assignment in granted.assignments}))

    def test_crash_inside_leaves_nothing(self):
        # After each statement that writes.
        for target, name in (
                (device_db, 'swap'), (assignment_db, 'insert'),
                (event_db, 'add_all'), (host_db, 'store')):
            original = getattr(target, name)

            def broken(*args, original=original, **kwargs):
                original(*args, **kwargs)
                raise RuntimeError('power cut')
            with mock.patch.object(target, name, broken):
                self.assertRaises(RuntimeError, self.claim, 3)
            self.assertEqual({'available': 8}, self.states())
            self.assertEqual((), claims.of_host(self.db, 'h1'))
        self.assertEqual(3, len(self.claim(3).assignments))

    def test_statements_do_not_grow_with_the_devices_of_the_host(self):
        def count(claimed):
            with self.statements() as statements:
                self.claim(1, instance=f'c{claimed}')
            return len(statements)
        count(0)
        one = count(1)
        base.hosts.store(self.db, base.scan(
            [base.function(number, id=f'/devices/pci0000:00/{number:02x}')
             for number in range(64)]))
        self.assertEqual(one, count(2))
        self.assertLessEqual(one, 10)

    def test_ledger(self):
        releases.release(self.db, base.uuids(self.boot(1)))
        self.clean_all()
        with self.db.reader() as session:
            kinds = [event.kind for event in session.execute(
                sa.select(event_db.TABLE).where(
                    event_db.TABLE.c.kind != 'appeared')
                .order_by(event_db.TABLE.c.id))]
        self.assertEqual(
            ['variant_create', 'session', 'claim', 'activate', 'release',
             'clean_started', 'clean_passed'], kinds)
