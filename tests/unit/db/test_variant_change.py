# SPDX-License-Identifier: Apache-2.0
"""Tests of rows of changes of variants, and of the hosts they concern."""

import json

from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.db import variant_change as change_db
from gpgpu_plugin.domain import variant as rules
from tests.unit.conductor import base

VALUE = rules.check(rules.Variant(
    name='A', vendor='10de', device='20b0', traits=('CUSTOM_B',)))
OTHER = rules.check(rules.Variant(name='A', vendor='1002', device='740f'))


class VariantChangeTest(base.ConductorTestCase):

    variant = False

    def setUp(self):
        super().setUp()
        self.report_second_host([
            base.function(0, device='20b0'), base.function(1, device='20b0')])

    def add(self, session, values, before=None):
        row = variant_db.fill(models.Variant(), values[-1])
        session.add(row)
        return change_db.add(
            session, row, rules.Status.CHANGING, values, before)

    def test_change_marks_its_variant_and_keeps_the_values_before(self):
        with self.db.writer() as session:
            change = self.add(session, [VALUE, OTHER], VALUE)
            self.assertEqual(VALUE, change_db.before(change))
            self.assertEqual([['1002', '740f'], ['10de', '20b0']],
                             json.loads(change.ids))
            variant = session.get(models.Variant, change.variant_id)
            self.assertEqual(('changing', None),
                             (variant.status, variant.reason))
            self.assertEqual(change, change_db.of_variant(
                session, change.variant_id))
            self.assertEqual([change], change_db.all(session))
            self.assertEqual(change, change_db.lock(session, change.id))
            self.assertIsNone(change_db.lock(session, change.id + 1))

    def test_hosts_are_those_with_its_ids_or_its_group(self):
        with self.db.writer() as session:
            change = self.add(session, [VALUE])
            first, second = (
                host.id for host in host_db.lock_all(session))
            self.assertEqual([second], change_db.next_hosts(session, change))
            session.add(models.Group(
                host_id=first, variant_id=change.variant_id,
                provider_uuid='p'))
            session.flush()
            self.assertEqual([first, second],
                             change_db.next_hosts(session, change))
            self.assertEqual([first],
                             change_db.next_hosts(session, change, 1))
            change.last_host_id = first
            change.skipped_hosts = '[7]'
            self.assertEqual(2, change_db.hosts_pending(session, change))
            self.assertEqual([7], change_db.skipped(change))

    def test_change_of_a_type_is_for_hosts_with_a_group(self):
        with self.db.writer() as session:
            row = variant_db.fill(models.Variant(), VALUE)
            session.add(row)
            session.flush()
            change = change_db.add_type(session, row, 'A-1', enabled=False)
            self.assertEqual(('A-1', False, 'applying'), (
                change.vgpu_type, change.enabled, row.status))
            first, _ = (host.id for host in host_db.lock_all(session))
            # The second has the ids of the variant.
            self.assertEqual([], change_db.next_hosts(session, change))
            session.add(models.Group(
                host_id=first, variant_id=row.id, provider_uuid='p'))
            session.flush()
            self.assertEqual([first], change_db.next_hosts(session, change))
