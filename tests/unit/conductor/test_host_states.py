# SPDX-License-Identifier: Apache-2.0
"""Tests of silent hosts, as lists and numbers show them."""

import time

from gpgpu_plugin.conductor import metrics
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.domain import device as device_rules
from tests.fixtures import rows
from tests.unit.conductor import base

SILENT_AFTER = 600


class HostStatesTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.report_second_host()
        self.heard('h1', 0)
        self.heard('h2', SILENT_AFTER + 5)

    def heard(self, host, seconds_ago):
        with self.db.writer() as session:
            rows.change_host(session, host, heard_at=time.time() - seconds_ago)

    def shown(self, listed, name):
        return {row.host: getattr(row, name)
                for row in listed(self.db, silent_after=SILENT_AFTER)}

    def test_silent_host_is_shown_in_each_list(self):
        for listed in (host_admin.list_all, group_admin.list_all,
                       device_admin.list_all, group_admin.list_types):
            self.assertEqual({'h1': 'up', 'h2': 'silent'},
                             self.shown(listed, 'host_state'))
        self.assertEqual('silent', host_admin.show(
            self.db, 'h2', silent_after=SILENT_AFTER).host_state)
        device = device_admin.list_all(self.db, host='h2')[0]
        self.assertEqual('silent', device_admin.show(
            self.db, device.uuid, silent_after=SILENT_AFTER).host_state)

    def test_nothing_remains_on_a_silent_host(self):
        self.assertEqual({'h1': 8, 'h2': 0},
                         self.shown(group_admin.list_all, 'remaining'))
        self.assertEqual(
            {'h1': 8, 'h2': 0},
            self.shown(group_admin.list_types, 'remaining_capacity'))
        self.assertEqual({'h1': 8, 'h2': 8},
                         self.shown(group_admin.list_all, 'total'))

    def test_metrics_count_nothing_of_it_as_remaining(self):
        for per_host, expected in ((True, {'h1': 8, 'h2': 0}),
                                   (False, {None: 8})):
            gauges = metrics.read(
                self.db, per_host=per_host,
                silent_after=SILENT_AFTER).gauges
            self.assertEqual(expected, {
                row.host: row.remaining_capacity for row in gauges.capacities})
            self.assertEqual(16, sum(
                row.max_capacity for row in gauges.capacities))

    def test_available_device_of_a_host_that_must_report_is_unknown(self):
        self.boot(1)
        with self.db.writer() as session:
            rows.hold_host(session, 'h1', device_rules.HostHoldKind.RESTORED)
        self.assertEqual({'h1': 'restored', 'h2': 'silent'},
                         self.shown(host_admin.list_all, 'host_state'))
        self.assertEqual({'assigned': 1, 'unknown': 7},
                         self.shown(host_admin.list_all, 'devices')['h1'])
        self.assertEqual({'assigned': 1, 'unknown': 7},
                         self.shown(group_admin.list_all, 'states')['h1'])
        self.assertEqual(0, self.shown(
            group_admin.list_types, 'remaining_capacity')['h1'])
        self.assertEqual(7, len(device_admin.list_all(
            self.db, state='unknown')))
        gauges = metrics.read(self.db, per_host=False,
                              silent_after=SILENT_AFTER).gauges
        self.assertEqual([0], [
            row.remaining_capacity for row in gauges.capacities])

    def test_host_that_is_disabled_in_nova_offers_nothing(self):
        for host in ('h1', 'h2'):
            with self.db.writer() as session:
                rows.hold_host(
                    session, host, device_rules.HostHoldKind.SERVICE_DISABLED)
        self.assertEqual({'h1': 'disabled', 'h2': 'silent'},
                         self.shown(group_admin.list_all, 'host_state'))
        self.assertEqual({'h1': 0, 'h2': 0},
                         self.shown(group_admin.list_all, 'remaining'))
        gauges = metrics.read(
            self.db, per_host=True, silent_after=SILENT_AFTER).gauges
        self.assertEqual({0}, {
            row.remaining_capacity for row in gauges.capacities})

    def test_draining_host_is_shown_in_each_list(self):
        for host in ('h1', 'h2'):
            with self.db.writer() as session:
                rows.hold_host(session, host,
                               device_rules.HostHoldKind.DRAINING)
        for listed in (host_admin.list_all, group_admin.list_all,
                       device_admin.list_all, group_admin.list_types):
            self.assertEqual({'h1': 'draining', 'h2': 'silent'},
                             self.shown(listed, 'host_state'))

    def test_host_that_calls_again_is_up(self):
        self.heard('h2', SILENT_AFTER - 5)
        self.assertEqual({'h1': 'up', 'h2': 'up'},
                         self.shown(host_admin.list_all, 'host_state'))

    def test_without_a_time_the_state_is_not_known(self):
        with self.db.reader() as session:
            states = host_admin.HostStates(session, None)
            self.assertIsNone(states.of('h2'))
            self.assertFalse(states.is_closed('h2'))
