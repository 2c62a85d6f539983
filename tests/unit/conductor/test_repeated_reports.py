# SPDX-License-Identifier: Apache-2.0
"""Tests of reports that have no news."""

import dataclasses
import functools

import fixtures
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import invariant
from hypothesis.stateful import rule
from oslotest import base as oslotest_base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import migration
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import admin
from tests.fixtures import hosts
from tests.fixtures import rows
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


class LateSampleTest(vgpu_base.VGPUTestCase):

    functions = vgpu_base.GPUS[:1]

    def scan(self, number):
        gpu = vgpu_base.GPUS[0]
        return base.scan((dataclasses.replace(
            gpu, driver_capacity=self.capacity(number, 1)),), number=number)

    @staticmethod
    def capacity(number, factor):
        return vgpu.DriverCapacity(
            available={f'T4-{size}Q': factor * (16 // size)
                       for size in (1, 2, 4, 8, 16)},
            sampled_at=('start', number))

    def test_scan_that_came_late_is_not_taken_for_the_next_one(self):
        for number in (1, 2, 3):
            reports.report(self.db, self.scan(number))
        offered = self.remaining()
        claim = self.ask('i1', Q4=1)
        # The driver fails after scan 4 has begun, and works again later.
        releases.abort(
            self.db, base.uuids(claim), touched=False, fault=None,
            driver_capacities={
                vgpu_base.GPUS[0].id: self.capacity(5, 0)})
        nothing = self.remaining()
        self.assertNotEqual(offered, nothing)
        reports.report(self.db, self.scan(4))
        self.assertEqual(nothing, self.remaining())
        reports.report(self.db, self.scan(6))
        self.assertEqual(offered, self.remaining())


class RepeatedTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.numbers = iter(range(2, 100))
        self.session = 1

    def scan(self, functions=base.EIGHT, **fields):
        return base.scan(functions, number=next(self.numbers), **fields)

    def origin(self, **fields):
        return hosts.origin(
            'h1', base.NODE, **{'session': self.session, **fields})

    def report(self, functions=base.EIGHT, **fields):
        return reports.report(
            self.db, self.scan(functions, **fields), self.origin())

    def answer(self, functions=base.EIGHT, **fields):
        return reports.answer_repeated(
            self.db, self.scan(functions, **fields), self.origin())

    def report_twice(self):
        """Report until the digest is kept: a report with news has none."""
        self.report()
        self.report()

    def test_first_report_without_news_is_stored_and_the_next_is_not(self):
        self.assertIsNone(self.answer())
        stored = self.report()
        with self.statements() as found:
            self.assertEqual(stored, self.report())
        self.assertEqual(['SELECT', 'UPDATE'], [
            statement.split()[0] for statement in found
            if not statement.startswith('BEGIN')])

    def test_later_sample_of_the_same_capacity_is_no_news(self):
        def scan(sample, available=1):
            return dataclasses.replace(self.scan(), driver_capacities={
                base.EIGHT[0].id: vgpu.DriverCapacity(
                    available={'T4-16Q': available},
                    sampled_at=('start', sample))})
        for sample in (1, 2):
            reports.report(self.db, scan(sample), self.origin())
        for again, is_news in ((scan(3), False), (scan(4, 0), True)):
            self.assertEqual(is_news, reports.answer_repeated(
                self.db, again, self.origin()) is None)

    def test_report_with_news_is_stored(self):
        self.report_twice()
        for news in (
                {'functions': base.EIGHT[1:]}, {'problems': ('x',)},
                {'functions': (base.replace(0, owner='Cyborg'),
                               *base.EIGHT[1:])}):
            self.assertIsNone(self.answer(**news))
        self.assertIsNotNone(self.answer())

    def test_order_of_what_was_found_by_name_is_no_news(self):
        one, other = (vgpu_base.t4(number) for number in (1, 2))
        first = base.scan((one, other))
        second = dataclasses.replace(first, vgpu_capabilities=dict(
            reversed(first.vgpu_capabilities.items())))
        self.assertNotEqual(
            list(first.vgpu_capabilities), list(second.vgpu_capabilities))
        for _ in range(2):
            reports.report(self.db, first)
        self.assertIsNotNone(reports.answer_repeated(self.db, second, None))

    def test_change_of_the_host_is_followed_by_a_stored_report(self):
        self.report_twice()
        [device, *_] = device_admin.list_all(self.db)
        for change in (
                self.change_variant,
                functools.partial(device_admin.set_, self.db,
                                  device.uuid, 'op', enabled=False),
                functools.partial(self.boot, 1)):
            self.assertIsNotNone(self.answer())
            change()
            self.assertIsNone(self.answer())
            self.report_twice()

    def change_variant(self):
        variant_admin.set_(self.db, admin.VariantInfo(
            name='H100', vendor='10de', device='2330', traits=('CUSTOM_X',)))

    def test_change_of_a_variant_is_followed_by_a_stored_report(self):
        """It may have to be applied: a conductor that crashed did not."""
        self.report_twice()
        variant_admin.create(self.db, admin.VariantInfo(
            name='A100', vendor='10de', device='20b0'))
        self.assertIsNone(self.answer())

    def test_other_build_of_the_plugin_stores_the_report(self):
        self.report_twice()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.reports._program',
            lambda: 'another'))
        self.assertIsNone(self.answer())

    def test_report_that_was_overtaken_is_no_repetition(self):
        early = self.scan()
        self.report_twice()
        self.assertIsNone(
            reports.answer_repeated(self.db, early, self.origin()))
        with self.db.reader() as session:
            self.assertLess(
                early.number, host_db.get(session, 'h1').report_number)

    def test_report_of_somebody_else_is_refused(self):
        self.report_twice()
        self.assertRaises(
            exception.Fenced, reports.answer_repeated, self.db, self.scan(),
            self.origin(start_uuid='another'))
        self.assertRaises(
            exception.SessionLost, reports.answer_repeated, self.db,
            dataclasses.replace(self.scan(), host='h9'), self.origin())

    def test_host_is_heard(self):
        self.report_twice()
        with self.db.writer() as session:
            rows.change_host(session, 'h1', heard_at=1)
        self.assertIsNotNone(self.answer())
        with self.db.reader() as session:
            self.assertLess(1, host_db.get(session, 'h1').heard_at)

    def begin(self, **fields):
        self.session = hosts.begin(
            self.db, 'h1', base.NODE, start_uuid=f'start{self.session}',
            expected=self.session, **fields).number

    def origin_of_start(self):
        return self.origin(start_uuid=f'start{self.session - 1}')

    def answer_to_first_report(self, book):
        return reports.answer_repeated(
            self.db, base.scan(base.EIGHT, number=1, assignments=book),
            self.origin_of_start())

    def test_new_session_reports_the_same_with_its_book(self):
        self.boot(2)
        self.report_twice()
        book = claims.of_host(self.db, 'h1')
        self.begin()
        with self.db.reader() as session:
            expected = capacity.host_inventory(session,
                                               host_db.get(session, 'h1'))
        self.assertEqual(expected, self.answer_to_first_report(book))
        # It counts as the report without which a session may do nothing.
        with self.db.reader() as session:
            sessions.refuse(
                host_db.get(session, 'h1'), self.origin_of_start())

    def test_book_that_the_database_does_not_know_is_no_repetition(self):
        self.boot(1)
        self.report_twice()
        [known] = claims.of_host(self.db, 'h1')
        self.begin()
        self.assertIsNone(self.answer_to_first_report(
            (known, dataclasses.replace(known, uuid='other'))))

    def test_first_report_after_a_restore_is_stored(self):
        self.report_twice()
        self.begin(doubted=True)
        self.assertIsNone(self.answer_to_first_report(()))

    def test_session_after_a_change_reports_all(self):
        self.report_twice()
        self.boot(1)
        self.begin()
        self.assertIsNone(self.answer_to_first_report(
            claims.of_host(self.db, 'h1')))


class RepeatedMachine(RuleBasedStateMachine):
    """State machine that changes a host and reports the same in between."""

    def __init__(self):
        super().__init__()
        self.case = vgpu_base.MachineCase('run')
        self.case.mix_policy = 'any_mix'
        self.case.setUp()
        self.db = self.case.db
        self.live = []
        self.count = 0
        self.functions = vgpu_base.GPUS
        self.number = 1
        self.known = 0

    def teardown(self):
        self.case.doCleanups()

    def scan(self):
        self.number += 1
        return base.scan(self.functions, number=self.number)

    def content(self):
        """Return all rows but what is kept of reports."""
        with self.db.reader() as session:
            return {
                name: [tuple(value for key, value in row._mapping.items()
                             if not key.startswith('report')
                             and key != 'heard_at')
                       for row in session.execute(table.select())]
                for name, table in migration.METADATA.tables.items()}

    @rule(name=st.sampled_from(['Q1', 'Q4', 'whole']))
    def claim(self, name):
        self.count += 1
        try:
            claim = self.case.ask(f'i{self.count}', **{name: 1})
        except exception.ClaimDenied:
            return
        self.live.append(claim)

    @rule()
    def activate(self):
        if self.live:
            claims.activate(self.db, base.uuids(self.live[-1]))

    @rule()
    def release(self):
        if self.live:
            releases.release(self.db, base.uuids(self.live.pop()))

    @rule(passed=st.booleans())
    def clean(self, passed):
        self.case.clean_all(passed)

    @rule(enabled=st.booleans(), number=st.integers(0, 1))
    def enable_device(self, enabled, number):
        [device] = [device for device in device_admin.list_all(self.db)
                    if device.stable_id == vgpu_base.GPUS[number].id]
        device_admin.set_(self.db, device.uuid, 'op', enabled=enabled)

    @rule(enabled=st.booleans(), host=st.sampled_from([None, 'h1']))
    def enable_type(self, enabled, host):
        try:
            self.case.enable('T4-2Q', host, enabled=enabled)
        except (exception.Conflict, exception.NotFound):
            return

    @rule(trait=st.booleans())
    def change_variant(self, trait):
        try:
            variant_admin.set_(self.db, admin.VariantInfo(
                name='T4', vendor='10de', device='1eb8',
                mix_policy='any_mix',
                traits=('CUSTOM_X',) if trait else ()))
        except exception.Conflict:
            return

    @rule()
    def begin_session(self):
        self.number = 0
        host = host_admin.show(self.db, 'h1')
        hosts.begin(self.db, 'h1', base.NODE, expected=host.session,
                    start_uuid=f'start{host.session}')
        self.store()

    @rule(functions=st.sampled_from([
        vgpu_base.GPUS, vgpu_base.GPUS[:1],
        (vgpu_base.t4(0, owner='Cyborg'), vgpu_base.GPUS[1])]))
    def report(self, functions):
        self.functions = functions
        self.store()

    @rule()
    def store(self):
        reports.report(self.db, self.scan())

    @invariant()
    def repetition_would_change_nothing(self):
        scan = self.scan()
        answer = reports.answer_repeated(self.db, scan, None)
        if answer is None:
            return
        before = self.content()
        stored = self.db.write(functools.partial(
            reports._report, scan=scan, origin=None))
        assert stored == answer, (stored, answer)
        after = self.content()
        for name, content in before.items():
            assert content == after[name], name
        type(self).repeated += 1

    repeated = 0


class AnyOrderTest(oslotest_base.BaseTestCase):

    def test_repetition_would_change_nothing(self):
        vgpu_base.run_machine(RepeatedMachine, are_all_needed=True)
        # The machine did come to this.
        self.assertLess(20, RepeatedMachine.repeated)
