# SPDX-License-Identifier: Apache-2.0
"""Tests of ``status``."""

import dataclasses
import json
import pathlib
import shlex
import time

import fixtures
import sqlalchemy as sa
from oslotest import base as oslotest_base

from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import attention
from gpgpu_plugin.domain import device
from gpgpu_plugin.rpc import ping
from tests.fixtures import rows
from tests.unit.cmd import base
from tests.unit.conductor import base as machine

FIT = ping.PingAnswer(host='c1', pid=1, version='1', rpc_version='1',
                      started_at=0)
UNFIT = dataclasses.replace(FIT, host='c2', unfit='its clock is wrong')


class DocumentationTest(oslotest_base.BaseTestCase):

    def test_page_has_every_cause_beside_its_severity(self):
        page = (pathlib.Path(__file__).parents[3] / 'doc' / 'source' / 'admin'
                / 'status.rst').read_text(encoding='utf-8')
        rows = {row.partition('`')[0]: ' '.join(row.split())
                for row in page.partition('* - severity')[2].split('* - ``')}
        for cause, (severity, _) in attention.RULES.items():
            self.assertIn(f'``{cause}``', rows[severity])


class StatusTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.answer(FIT)

    def answer(self, *answers):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.ping.ping', lambda *_, **__: answers))

    def status(self, code):
        """Return severity, count and names by what is listed."""
        result = self.manage('status', '-f', 'json')
        self.assertEqual(
            (code, '' if code else 'gpgpu-manage: nothing needs you\n'),
            (result.code, result.err))
        rows = json.loads(result.out)
        for row in rows:
            self.understood(row['Next Command'])
        return {row['What']: (row['Severity'], row['Count'], row['Where'])
                for row in rows}

    def understood(self, line):
        """Check that a command exists, and finds what it names."""
        program, *words = shlex.split(line)
        self.assertEqual('gpgpu-manage', program)
        result = self.manage(*words)
        self.assertEqual(0, result.code, result.err)

    def set_device(self, address, **values):
        with self.conductor.db.writer() as session:
            session.execute(sa.update(tables.DEVICES).where(
                tables.DEVICES.c.address == address).values(**values))

    def hold(self, address, kind):
        with self.conductor.db.writer() as session:
            rows.hold(session, session.scalar(
                sa.select(tables.DEVICES.c.id).where(
                    tables.DEVICES.c.address == address)), kind, 'it failed')

    def test_every_next_command_can_be_run(self):
        for cause, (_, words) in attention.RULES.items():
            with self.subTest(cause):
                first = 'H100' if cause.name.startswith('VARIANT') else 'h1'
                self.understood(f'gpgpu-manage {words.format(first=first)}')

    def test_cloud_in_order_needs_nobody(self):
        self.assertEqual({}, self.status(0))
        self.assertNotIn('Severity', self.manage('status').out)

    def test_silent_host_is_critical_until_it_is_drained(self):
        with self.conductor.db.writer() as session:
            rows.change_host(session, 'h1', heard_at=time.time() - 901)
        found = self.status(2)
        self.assertEqual(('critical', 1, 'h1'),
                         found[attention.Cause.HOST_SILENT])
        # Nothing of its host is left.
        self.assertEqual(('info', 1, 'H100'),
                         found[attention.Cause.VARIANT_EXHAUSTED])
        self.api.host_drain(self.context, 'h1', draining=True)
        self.assertEqual(('info', 1, 'h1'),
                         self.status(0)[attention.Cause.HOST_DRAINING])

    def test_host_that_has_not_reported_since_a_restore_is_critical(self):
        sessions.mark_restored(self.conductor.db)
        self.assertEqual(('critical', 1, 'h1'),
                         self.status(2)[attention.Cause.HOST_RESTORED])

    def test_holds_are_counted_by_kind(self):
        for number in range(4):
            self.hold(f'0000:0{number}:00.0', device.HoldKind.FAILED)
        self.hold('0000:03:00.0', device.HoldKind.QUARANTINED)
        self.hold('0000:04:00.0', device.HoldKind.DISABLED)
        self.assertEqual({
            attention.Cause.HOLD_FAILED: (
                'critical', 3,
                'h1 0000:00:00.0, h1 0000:01:00.0, h1 0000:02:00.0'),
            attention.Cause.HOLD_QUARANTINED: (
                'info', 1, 'h1 0000:03:00.0'),
            attention.Cause.HOLD_DISABLED: (
                'info', 1, 'h1 0000:04:00.0')}, self.status(2))

    def test_missing_devices_are_critical_until_they_are_quarantined(self):
        self.report(machine.EIGHT[1:])
        gone = machine.EIGHT[0].address
        self.assertEqual(
            {attention.Cause.DEVICE_MISSING: ('critical', 1, f'h1 {gone}')},
            self.status(2))
        self.hold(gone, device.HoldKind.QUARANTINED)
        self.assertEqual([attention.Cause.HOLD_QUARANTINED],
                         list(self.status(0)))

    def test_card_that_left_while_a_guest_has_it_is_critical(self):
        gone = machine.EIGHT[0].address
        self.set_device(gone, state='assigned')
        self.report(machine.EIGHT[1:])
        self.assertEqual(
            {attention.Cause.DEVICE_MISSING: ('critical', 1, f'h1 {gone}')},
            self.status(2))

    def test_degraded_gpu_is_a_warning_and_a_failed_one_critical(self):
        self.set_device('0000:00:00.0', health='degraded')
        self.assertEqual(
            {attention.Cause.HEALTH_DEGRADED: (
                'warning', 1, 'h1 0000:00:00.0')}, self.status(1))
        self.set_device('0000:01:00.0', health='failed')
        self.assertEqual(
            [attention.Cause.HEALTH_FAILED, attention.Cause.HEALTH_DEGRADED],
            list(self.status(2)))

    def test_variant_with_a_reason_is_a_warning(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.variant.doubts',
            lambda session: {'H100': 'no step can pass'}))
        self.assertEqual(
            {attention.Cause.VARIANT_DOUBTFUL: ('warning', 1, 'H100')},
            self.status(1))

    def test_variant_whose_gpus_are_all_assigned_is_information(self):
        self.claim(count=8)
        self.assertEqual(
            {attention.Cause.VARIANT_EXHAUSTED: ('info', 1, 'H100')},
            self.status(0))

    def test_unfit_conductor_beside_others_is_a_warning(self):
        self.answer(FIT, UNFIT)
        self.assertEqual(
            {attention.Cause.CONDUCTOR_UNFIT: ('warning', 1, 'c2 (PID 1)')},
            self.status(1))

    def test_cloud_whose_conductors_are_all_unfit_is_not_asked(self):
        self.answer(UNFIT)
        # A call would fail.
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.cmd.reach.ConductorCommand.api', None))
        self.assertEqual(
            {attention.Cause.NO_CONDUCTOR_FIT: (
                'critical', 1, 'c2 (PID 1)')}, self.status(2))

    def test_conductors_that_answer_calls_but_no_ping_are_a_warning(self):
        self.answer()
        result = self.manage('status', '-f', 'json')
        self.assertEqual(1, result.code, result.err)
        [row] = json.loads(result.out)
        self.assertEqual(attention.Cause.NO_PING_ANSWERED, row['What'])

    def test_conductor_that_does_not_answer_is_exit_code_2(self):
        self.answer()
        self.conf.set_override('rpc_timeout', 1, 'gpgpu')
        self.conf.set_override('topic_prefix', 'nobody', 'gpgpu')
        self.assertIn('No gpgpu-conductor answered host_list',
                      self.refused('status', code=2))
