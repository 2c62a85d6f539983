# SPDX-License-Identifier: Apache-2.0
"""Tests of the filters of lists, alone and with each other.

What the database finds must be those rows of the whole list that have the
wanted values, so that no filter changes the meaning of another.
"""

import dataclasses
import itertools

import sqlalchemy as sa

from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import assignment as assignment_admin
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import history as history_obj
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


def _pairs(values):
    """Yield every filter with one value, and every two filters."""
    for count in (1, 2):
        for names in itertools.combinations(values, count):
            for wanted in itertools.product(*map(values.get, names)):
                yield dict(zip(names, wanted, strict=True))


class FilterTest(vgpu_base.VGPUTestCase):
    """Two hosts with GPUs of two variants, vGPUs of two types, and others."""

    functions = (vgpu_base.t4(0), vgpu_base.t4(1), base.function(2),
                 base.function(3, vendor='8086', device='56c0'))

    def setUp(self):
        super().setUp()
        variant_admin.create(self.db, admin.VariantInfo(
            name='H100', vendor='10de', device='2330'))
        hosts.store(self.db, base.scan(
            (vgpu_base.t4(0), *base.EIGHT[4:]), host='h2',
            node_uuid=base.node_uuid('h2')))
        self.grant('i1', 'p1', 'u1', 'h1', T4=0, Q1=2)
        self.grant('i2', 'p2', 'u2', 'h1', H100=1)
        self.grant('i3', 'p1', 'u1', 'h2', H100=1)
        self.grant('i4', 'p2', 'u1', 'h2', Q4=1)
        releases.release(self.db, self.grant('i5', 'p1', 'u2', 'h2', H100=1))
        free = [device.uuid for device in device_admin.list_all(
            self.db, 'h2', 'H100', state='available')]
        withdrawal.quarantine(self.db, free[0], 'fan', 'op')
        retirement.retire(self.db, free[1], 'sold', 'op')
        self.set_health('failed', free[0])

    def grant(self, instance, project, user, host, **counts):
        """Claim and activate; ``Q4`` stands for T4-4Q."""
        names = {name: naming.resource_class('T4', f'T4-{name[1:]}Q')
                 if name.startswith('Q') else naming.resource_class(name)
                 for name, count in counts.items() if count}
        granted = base.uuids(claims.claim(self.db, claim_obj.ClaimRequest(
            instance_uuid=instance, host=host, project_id=project,
            user_id=user, flavor='f1',
            request=request.Request(demands=tuple(
                request.Demand(resource_class=resource_class,
                               count=counts[name])
                for name, resource_class in names.items()))), lease=60))
        claims.activate(self.db, granted)
        return granted

    def set_health(self, health, device):
        with self.db.writer() as session:
            session.execute(sa.update(tables.DEVICES).where(
                tables.DEVICES.c.kind == 'pci').values(health='ok'))
            session.execute(sa.update(tables.DEVICES).where(
                tables.DEVICES.c.uuid == device).values(health=health))

    def check(self, rows, listed, values, same=()):
        """Check every filter alone, and every pair of filters.

        :param rows: the whole list
        :param listed: function that lists with filters
        :param values: values to try by filter
        :param same: pairs of a filter and the field that it compares
        """
        fields, sizes = dict(same), set()
        for filters in _pairs(values):
            expected = [row for row in rows if all(
                getattr(row, fields.get(name, name)) == value
                for name, value in filters.items())]
            self.assertEqual(expected, list(listed(**filters)), filters)
            sizes.add(min(len(expected), 2))
        # Some combinations leave many rows, and some leave none.
        self.assertEqual({0, 1, 2}, sizes)

    def test_devices(self):
        def listed(**filters):
            return device_admin.list_all(
                self.db, include_retired=True, **filters)
        rows = listed()
        self.check(rows, listed, {
            'host': ['h1', 'h2'], 'variant': ['H100', 'T4'],
            'state': ['available', 'assigned', 'quarantined', 'retired',
                      'unmanaged'],
            'used_by': ['i1', 'i3'], 'project': ['p1', 'p2'],
            'type': ['gpu'], 'vgpu_type': ['T4-1Q', 'T4-4Q'],
            'health': ['ok', 'failed']}, [
                ('state', 'shown_state'), ('project', 'project_id')])
        self.assertEqual(
            [row for row in rows if row.state != 'retired'],
            list(device_admin.list_all(self.db)))

    def test_faulty_devices(self):
        [missing, *_] = device_admin.list_all(
            self.db, type='gpu', state='available')
        [degraded] = device_admin.list_all(self.db, used_by='i2')
        with self.db.writer() as session:
            for changed, values in ((missing, {'present': False}),
                                    (degraded, {'health': 'degraded'})):
                session.execute(sa.update(tables.DEVICES).where(
                    tables.DEVICES.c.uuid == changed.uuid).values(**values))
        expected = [
            row.uuid for row in device_admin.list_all(self.db)
            if row.shown_state in ('missing', 'quarantined')
            or row.health in ('degraded', 'failed')]
        found = [row.uuid for row in device_admin.list_all(
            self.db, faulty=True)]
        self.assertEqual(expected, found)
        self.assertEqual(3, len(found))
        self.assertLess({missing.uuid, degraded.uuid}, set(found))
        self.assertEqual([degraded.uuid], [
            row.uuid for row in device_admin.list_all(
                self.db, degraded.host, faulty=True, health='degraded')])

    def test_events(self):
        def listed(**filters):
            return history.list_events(
                self.db, history_obj.EventFilter(**filters))
        rows = listed()
        device = next(row.device_uuid for row in rows if row.device_uuid)
        self.check(rows, listed, {
            'host': ['h1', 'h2'], 'device': [device],
            'instance': ['i1', 'i5'], 'project': ['p1', 'p2'],
            'kind': ['claim', 'release', 'quarantine']}, [
                ('device', 'device_uuid'), ('instance', 'instance_uuid'),
                ('project', 'project_id')])

    def test_usage_and_its_sums(self):
        def listed(**filters):
            return [dataclasses.replace(row, seconds=0) for row
                    in history.list_usage(
                        self.db, history_obj.UsageQuery(**filters))]
        rows = listed()
        values = {
            'host': ['h1', 'h2'], 'project_id': ['p1', 'p2'],
            'user_id': ['u1', 'u2'], 'variant': ['H100', 'T4'],
            'instance_uuid': ['i1', 'i5']}
        self.check(rows, listed, values)
        for name, wanted in values.items():
            for value in wanted:
                sums = history.usage_summary(self.db, history_obj.UsageQuery(
                    **{name: value}), ['host', 'vgpu_type'])
                self.assertEqual(
                    sum(getattr(row, name) == value for row in rows),
                    sum(found.usages for found in sums))

    def test_groups_and_vgpu_types(self):
        values = {'host': ['h1', 'h2'], 'variant': ['H100', 'T4']}
        for list_all in (group_admin.list_all, group_admin.list_types):
            rows = list_all(self.db)
            for filters in _pairs(values):
                expected = [row for row in rows if all(
                    getattr(row, name) == value
                    for name, value in filters.items())]
                self.assertEqual(
                    expected, list(list_all(self.db, **filters)))
                self.assertTrue(expected)

    def test_types_that_are_enabled(self):
        rows = group_admin.list_types(self.db)
        for host in (None, 'h1'):
            self.assertEqual(
                [row for row in rows if row.enabled
                 and host in (None, row.host)],
                list(group_admin.list_types(
                    self.db, host, only_enabled=True)))
        self.assertNotEqual({True}, {row.enabled for row in rows})

    def test_assignments(self):
        def listed(**filters):
            return assignment_admin.list_all(
                self.db, lambda *asked: {}, **filters)
        rows = listed()
        self.check(rows, listed, {
            'host': ['h1', 'h2'], 'instance': ['i1', 'i2', 'i5']}, [
                ('instance', 'instance_uuid')])
