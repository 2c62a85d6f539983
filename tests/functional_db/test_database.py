# SPDX-License-Identifier: Apache-2.0
"""The conductor's rules on PostgreSQL and MariaDB."""

import contextlib
import dataclasses
import datetime
import threading
from unittest import mock

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor import service
from gpgpu_plugin.conductor import type_sync
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import purge
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from gpgpu_plugin.scheduler_filters import scheduler_view
from tests.fixtures import database
from tests.fixtures import hosts
from tests.fixtures import released
from tests.fixtures import rows
from tests.fixtures import services
from tests.unit.cmd.upgrade import test_database as upgrade_database
from tests.unit.cmd.upgrade import test_keys as upgrade_keys
from tests.unit.conductor import base
from tests.unit.conductor import test_adoption
from tests.unit.conductor import test_card_identity
from tests.unit.conductor import test_claims
from tests.unit.conductor import test_cleaning
from tests.unit.conductor import test_confirmation
from tests.unit.conductor import test_driver_capacity
from tests.unit.conductor import test_isolation
from tests.unit.conductor import test_ledger
from tests.unit.conductor import test_link_claims
from tests.unit.conductor import test_recleaning
from tests.unit.conductor import test_refusal_events
from tests.unit.conductor import test_releases
from tests.unit.conductor import test_repeated_reports
from tests.unit.conductor import test_reports
from tests.unit.conductor import test_request_mix
from tests.unit.conductor import test_retirement
from tests.unit.conductor import test_scheduler_feed
from tests.unit.conductor import test_sessions
from tests.unit.conductor import test_sightings
from tests.unit.conductor import test_variant_sweep as changes
from tests.unit.conductor import test_vgpu_capacity
from tests.unit.conductor import test_vgpu_claims
from tests.unit.conductor.admin import test_device
from tests.unit.conductor.admin import test_event
from tests.unit.conductor.admin import test_group
from tests.unit.conductor.admin import test_host
from tests.unit.conductor.admin import test_pages
from tests.unit.conductor.admin import test_variant
from tests.unit.conductor.admin import test_vgpu_type
from tests.unit.db import test_assignment
from tests.unit.db import test_device_list
from tests.unit.db import test_gauges
from tests.unit.db import test_ledger as ledger_rows
from tests.unit.db import test_purge
from tests.unit.db import test_request_kind
from tests.unit.db import test_usage
from tests.unit.db import test_usage_list


class PostgreSQLMixin:

    server = services.POSTGRESQL

    def setUp(self):
        services.require(self, self.server)
        super().setUp()

    def database(self):
        if self.changes_schema:
            return database.ServerDatabase(
            self.conf, self.server, content=self.content)
        return database.ReusedDatabase(self.conf, self.server, self.content)


class MariaDBMixin(PostgreSQLMixin):

    server = services.MARIADB


class LateCommit(base.ConductorTestCase):
    """A change that commits after a later one was read is not skipped."""

    def setUp(self):
        super().setUp()
        self.report_second_host()
        self.feed = scheduler_feed.SchedulerFeed(self.db)
        api = mock.Mock()
        api.changes_since = lambda _, since, known, marker, *_more: (
            self.feed.changes_since(since, known, marker))
        self.cache = scheduler_view.SchedulerViewCache(api)

    def seen(self):
        """Return the generations that a scheduler sees."""
        return {host.sent.host: host.sent.version.generation
                for host in self.cache.refresh().hosts.values()}

    @contextlib.contextmanager
    def uncommitted(self, name):
        """Change a host; the change is committed when the block ends."""
        begun, commit = threading.Event(), threading.Event()

        def late():
            with self.db.writer() as session:
                rows.mark_changed(session, name)
                begun.set()
                commit.wait(300)
        writer = threading.Thread(target=late)
        writer.start()
        try:
            self.assertTrue(begun.wait(300))
            yield
        finally:
            commit.set()
            writer.join()

    def test_late_commit_is_not_skipped(self):
        first = self.seen()
        with self.uncommitted('h1'):
            with self.db.writer() as session:
                rows.mark_changed(session, 'h2')
            self.assertEqual({'h1': first['h1'], 'h2': first['h2'] + 1},
                             self.seen())
        self.assertEqual({'h1': first['h1'] + 1, 'h2': first['h2'] + 1},
                         self.seen())

    def test_commit_that_waited_longer_than_the_window_is_seen_later(self):
        """No server ends one that waits for a synchronous standby."""
        first = self.seen()
        long_ago = 2 * scheduler_feed.WINDOW
        with self.db.writer() as session:
            rows.mark_changed(session, 'h1')
            session.execute(sa.update(tables.HOSTS).where(
                tables.HOSTS.c.name == 'h1').values(
                    changed_at=tables.HOSTS.c.changed_at - long_ago))
        self.assertEqual(first, self.seen())
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.scheduler_filters.scheduler_view.READ_AGAIN', 0))
        self.assertEqual({**first, 'h1': first['h1'] + 1}, self.seen())

    def test_host_whose_row_is_locked_is_seen(self):
        with self.uncommitted('h2'):
            # A new scheduler, and one that knows the host.
            for _ in range(2):
                self.assertEqual({'h1', 'h2'}, set(self.seen()))

    def test_time_is_kept_to_the_last_digit(self):
        with self.db.reader() as session:
            [known] = [version for version in host_db.changed_since(
                session, 0) if version.id == host_db.get(session, 'h1').id]
            self.assertEqual(known.changed_at, session.scalar(
                sa.select(tables.HOSTS.c.changed_at).where(
                    tables.HOSTS.c.changed_at == known.changed_at)))


class BusyHost(base.ConductorTestCase):
    """A host on which eight threads claim and abort all the time."""

    def setUp(self):
        super().setUp()
        self.transport = rpc_transport.get_transport(self.conf)
        for _ in range(2):
            conductor = service.ConductorService(
                self.conf, self.transport, self.db)
            conductor.start()
            self.addCleanup(conductor.stop)
        self.calls = conductor_client.ConductorAPI(self.conf, self.transport)
        self.ended = threading.Event()
        self.claimed = threading.Barrier(9)
        self.errors = []

    def claim_and_abort(self, number):
        context = gpgpu_context.admin()
        origin = hosts.origin('h1', base.NODE)
        first = True
        while not self.ended.is_set():
            try:
                granted = self.calls.claim(
                    context, origin, self.request(1, f'i{number}'))
                self.calls.abort(context, origin, base.uuids(granted),
                                 touched=False, fault=None,
                                 driver_capacities=None)
            except exception.GPUPluginException as exc:
                self.errors.append(exc)
                self.ended.set()
            if first:
                self.claimed.wait(300)
                first = False

    def committed(self):
        with self.db.reader() as session:
            return host_db.get(session, 'h1').generation

    def test_each_call_sees_what_was_committed_before_it(self):
        cache = scheduler_view.SchedulerViewCache(self.calls)
        threads = [
            threading.Thread(target=self.claim_and_abort, args=(number,))
            for number in range(8)]
        for thread in threads:
            thread.start()
        self.claimed.wait(300)
        try:
            before = self.committed()
            for _ in range(20):
                committed = self.committed()
                seen = cache.refresh().hosts[base.NODE].sent.version.generation
                self.assertGreaterEqual(seen, committed)
        finally:
            self.ended.set()
            for thread in threads:
                thread.join()
        self.assertEqual([], self.errors)
        self.assertGreater(self.committed(), before)


class FirstReport(base.ConductorTestCase):
    """A host that reports first while an operator changes variants."""

    variant = False

    def setUp(self):
        super().setUp()
        self.planning, self.go_on = threading.Event(), threading.Event()
        plan = variant_matching.plan

        def wait(variants, *args):
            # It has read the variants.
            if threading.current_thread() is self.reporter:
                self.planning.set()
                self.go_on.wait(300)
            return plan(variants, *args)
        self.reporter = threading.Thread(target=self.report_second_host)
        self.addCleanup(self.reporter.join)
        self.addCleanup(self.go_on.set)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.variant_matching.plan', wait))

    def meanwhile(self, change, *args):
        self.reporter.start()
        self.planning.wait(300)
        change(self.db, *args)
        self.go_on.set()
        self.reporter.join(300)
        variant_sweep.run(self.db)

    def variants_of_h2(self):
        return {device.variant
                for device in device_admin.list_all(self.db, 'h2')}

    def test_variant_that_is_created_meanwhile_is_the_hosts_too(self):
        self.meanwhile(variant_admin.create, changes.H100)
        self.assertEqual('ready', variant_admin.show(
            self.db, 'H100').status)
        self.assertEqual({'H100'}, self.variants_of_h2())

    def test_variant_that_is_deleted_meanwhile_is_not_the_hosts(self):
        variant_admin.create(self.db, changes.H100)
        self.meanwhile(variant_admin.delete, 'H100', changes.LATE)
        self.assertEqual({None}, self.variants_of_h2())


class FirstTypes(base.ConductorTestCase):
    """A host that reports first while an operator sets what groups have."""

    def meanwhile(self, change, *args, **kwargs):
        """Change something before the report of h2 is committed."""
        stored, go_on = threading.Event(), threading.Event()
        sync = type_sync.sync

        def wait(*args):
            synced = sync(*args)
            if threading.current_thread() is reporter:
                stored.set()
                go_on.wait(300)
            return synced
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.type_sync.sync', wait))
        reporter = threading.Thread(target=self.report_second_host)
        operator = threading.Thread(
            target=change, args=(self.db, *args), kwargs=kwargs)
        reporter.start()
        self.addCleanup(reporter.join)
        self.addCleanup(go_on.set)
        self.assertTrue(stored.wait(300))
        operator.start()
        self.addCleanup(operator.join)
        # It would be done by then if it did not wait.
        operator.join(1)
        go_on.set()
        operator.join(300)
        reporter.join(300)
        # The host was locked when the operator's call swept.
        variant_sweep.run(self.db)

    def test_type_that_is_disabled_meanwhile_is_disabled_there_too(self):
        self.meanwhile(group_admin.set_type_enabled, 'H100', 'passthrough',
                       None, enabled=False)
        self.assertEqual({'h1': False, 'h2': False}, {
            info.host: info.enabled
            for info in group_admin.list_types(self.db)})

    def test_policy_of_the_variant_set_meanwhile_is_had_there_too(self):
        self.meanwhile(variant_admin.set_, dataclasses.replace(
            variant_admin.show(self.db, 'H100'),
            allocation_policy='breadth_first'))
        self.assertEqual({'h1': 'breadth_first', 'h2': 'breadth_first'}, {
            info.host: info.allocation_policy
            for info in group_admin.list_all(self.db)})


class PurgeBesideLock(base.ConductorTestCase):
    """A purge while somebody keeps a host locked."""

    def test_host_that_is_locked_does_not_delay_the_purge(self):
        for _ in range(2):
            releases.release(self.db, base.uuids(self.boot(8)))
            self.clean_all()
        with self.db.writer() as session:
            host_db.lock(session, 'h1')
            purged = purge.purge(self.db, datetime.datetime.max)
        self.assertEqual(8, purged.assignments)


class RepeatedBesideLocks(base.ConductorTestCase):
    """A report without news while somebody keeps locks."""

    def setUp(self):
        super().setUp()
        for _ in range(2):
            reports.report(self.db, base.scan(base.EIGHT))

    def answer(self):
        return reports.answer_repeated(
            self.db, base.scan(base.EIGHT, number=9), None)

    def test_change_of_variants_does_not_delay_it(self):
        with self.db.writer() as session:
            variant_db.lock(session)
            self.assertIsNotNone(self.answer())

    def test_change_that_it_waited_for_is_news(self):
        answers = []
        with self.db.writer() as session:
            rows.mark_changed(session, 'h1')
            waits = threading.Thread(
                target=lambda: answers.append(self.answer()))
            waits.start()
            waits.join(0.5)
            self.assertEqual([], answers)
        waits.join(300)
        self.assertEqual([None], answers)


class RetireBesideClaim(base.ConductorTestCase):
    """A GPU that is claimed and retired in two transactions at once."""

    functions = base.EIGHT[:1]

    def both(self, number):
        """Claim and retire the GPU at once; return what happened to each."""
        device = device_admin.list_all(self.db)[0].uuid
        barrier, ended = threading.Barrier(2), {}

        def run(name, refused, call):
            barrier.wait(300)
            try:
                ended[name] = call() or True
            except refused:
                ended[name] = None
        threads = [threading.Thread(target=run, args=arguments)
                   for arguments in (
            ('claim', exception.ClaimDenied,
             lambda: self.boot(instance=f'i{number}')),
            ('retire', exception.Conflict,
             lambda: retirement.retire(self.db, device, None, 'op')))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        return device, ended['claim'], ended['retire']

    def test_exactly_one_of_them_wins(self):
        for number in range(8):
            device, claimed, retired = self.both(number)
            self.assertNotEqual(claimed is None, retired is None)
            shown = device_admin.show(self.db, device).shown_state
            if retired:
                self.assertEqual('retired', shown)
                released.release(self.db, device, 'op')
            else:
                self.assertEqual('assigned', shown)
                releases.release(self.db, base.uuids(claimed))
            self.clean_all()


class BesideClaims(changes.ChangeCase):
    """A variant that is created beside claims and other transactions."""

    count = 3
    SPECIAL = dataclasses.replace(
        changes.H100, name='S', subsystem_vendor='10de', subsystem='16c1')

    def setUp(self):
        super().setUp()
        variant_admin.create(self.db, changes.H100)
        variant_admin.create(self.db, self.SPECIAL, changes.LATE)

    def test_host_that_is_locked_delays_neither_others_nor_their_claims(self):
        with self.db.writer() as session:
            host_db.lock(session, 'h1')
            self.assertEqual(['h2'], self.advance(2))
            self.claim(1, 'i2', host='h2', variant='S')
            # A claim brings its host up to date.
            self.claim(1, 'i3', host='h3', variant='S')
            self.assertEqual([], self.advance(3))
            self.assertEqual(('applying', 1), self.shown('S'))
        self.run_all()
        self.assertEqual(('ready', 0), self.shown('S'))
        self.assertEqual(['S', 'S', 'S'], self.variants())

    def test_host_under_way_delays_neither_other_hosts_nor_calls(self):
        planning, go_on = threading.Event(), threading.Event()
        plan = variant_matching.plan

        def wait(*args):
            if threading.current_thread() is sweep:
                planning.set()
                go_on.wait(300)
            return plan(*args)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.variant_matching.plan', wait))
        sweep = threading.Thread(target=self.advance)
        sweep.start()
        self.addCleanup(sweep.join)
        self.addCleanup(go_on.set)
        self.assertTrue(planning.wait(300))
        self.claim(1, 'i3', host='h3', variant='S')
        # Another conductor leaves the host to the one that works on it.
        self.assertEqual(['h2'], self.advance(2))
        variant_admin.create(self.db, changes.A100)
        go_on.set()
        sweep.join(300)
        self.run_all()
        self.assertEqual(['S', 'S', 'S'], self.variants())


class OfferBesideClaims(changes.ChangeCase):
    """What a variant offers changes beside claims of its devices."""

    count = 3

    def test_claim_before_a_hosts_turn_neither_waits_nor_undoes_it(self):
        variant_admin.create(self.db, changes.H100)
        with self.db.writer() as session:
            host_db.lock(session, 'h1')
            variant_admin.set_(self.db, dataclasses.replace(
                changes.H100, traits=('CUSTOM_X',), mix_policy='any_mix',
                allocation_policy='breadth_first'), changes.LATE)
            self.assertEqual(['h2'], self.advance(2))
            self.claim(1, 'i2', host='h2')
            self.claim(1, 'i3', host='h3')
        self.claim(1, 'i1', host='h1')
        self.run_all()
        info = variant_admin.show(self.db, 'H100')
        self.assertEqual(('ready', ('CUSTOM_X',)), (
            info.status, info.traits))
        self.assertNotIn('change', info.reason or '')
        self.assertEqual(['i1', 'i2', 'i3'], [
            device.used_by for device in device_admin.list_all(self.db)])
        self.assertEqual({'breadth_first'}, {
            group.allocation_policy
            for group in group_admin.list_all(self.db)})

    def test_two_operators_do_not_undo_each_others_changes(self):
        read = variant_admin.create(self.db, changes.H100)
        results = []

        def set_(**fields):
            try:
                results.append(variant_admin.set_(
                    self.db, dataclasses.replace(read, **fields), read=read))
            except exception.Conflict as exc:
                results.append(exc)
        operators = [
            threading.Thread(target=set_, kwargs={'traits': ('CUSTOM_X',)}),
            threading.Thread(target=set_, kwargs={'memory_mib': 1})]
        for operator in operators:
            operator.start()
        for operator in operators:
            operator.join(300)
        [refused] = [result for result in results
                     if isinstance(result, exception.Conflict)]
        [done] = [result for result in results if result is not refused]
        self.assertEqual(done, variant_admin.show(self.db, 'H100'))


def _on(mixin, *cases):
    """Derive each test case for the server of the mixin."""
    return {name: type(name, (mixin, case), {'__module__': __name__})
            for name, case in ((_name(mixin, case), case) for case in cases)}


def _name(mixin, case):
    """Return a name with that of the module, as several have a ClaimTest."""
    module = case.__module__.rpartition('.')[2]
    return (mixin.__name__.removesuffix('Mixin')
            + module.removeprefix('test_').title().replace('_', '')
            + case.__name__)


for _mixin in (PostgreSQLMixin, MariaDBMixin):
    globals().update(_on(
        _mixin, test_sessions.BeginTest, test_sessions.CheckTest,
        test_sessions.ReportOrderTest, test_sessions.RestoreTest,
        test_adoption.AdoptionTest, test_claims.ClaimTest,
        test_releases.EndTest, test_releases.LateTest,
        test_assignment.UniqueKeyTest, test_device_list.ShownStateTest,
        test_device_list.PageTest, test_pages.PagesTest,
        test_gauges.CountTest,
        test_event.EventListTest, test_refusal_events.RowsTest,
        test_request_mix.RequestsTest, test_request_kind.RequestKindTest,
        test_purge.PurgeTest, test_usage.UsageTest,
        test_usage.VGPUUsageTest, test_usage_list.SumTest,
        test_usage_list.ExportTest, test_usage_list.PartitionTest,
        test_cleaning.TasksTest, test_cleaning.StartedTest,
        test_cleaning.AttemptTest, test_cleaning.FinishedTest,
        test_cleaning.OperatorReleaseTest, test_recleaning.CleanAgainTest,
        test_ledger.RecordTest, test_ledger.ChainTest, ledger_rows.LedgerTest,
        test_confirmation.ConfirmationTest, test_reports.ReportTest,
        test_isolation.AlwaysTest,
        test_variant.VariantTest, test_variant.PendingTest,
        changes.SweepTest, changes.ClaimTest, changes.OtherHostsTest,
        changes.PolicyTest, changes.TypeTest, changes.CrashTest,
        test_device.DeviceTest, test_group.GroupTest, test_host.HostTest,
        test_host.VGPUHostTest,
        test_scheduler_feed.ChangesTest, test_scheduler_feed.PageTest,
        test_vgpu_type.ListTest, test_vgpu_type.EnableTest,
        test_vgpu_capacity.MdevCapacityTest,
        test_vgpu_capacity.VFCapacityTest, test_vgpu_claims.MdevClaimTest,
        test_driver_capacity.DriverCapacityTest, LateCommit, BusyHost,
        test_link_claims.LinkClaimTest, test_link_claims.ParallelTest,
        FirstReport, FirstTypes, PurgeBesideLock, BesideClaims,
        OfferBesideClaims, RetireBesideClaim, test_retirement.ReplaceTest,
        test_card_identity.MovedTest, test_sightings.OperatorTest,
        RepeatedBesideLocks, test_repeated_reports.RepeatedTest,
        upgrade_database.SchemaTest, upgrade_database.ComputesTest,
        upgrade_keys.OfCallersTest))
del BesideClaims, BusyHost, FirstReport, FirstTypes, LateCommit
del OfferBesideClaims, PurgeBesideLock, RepeatedBesideLocks
del RetireBesideClaim, _mixin


class PostgreSQLJITTest(PostgreSQLMixin, base.ConductorTestCase):

    def test_postgresql_compiles_no_expressions(self):
        with self.db.reader() as session:
            self.assertEqual('off', session.scalar(sa.text('SHOW jit')))


class MariaDBNameTest(MariaDBMixin, base.ConductorTestCase):
    """MariaDB compares names exactly, as the other databases do."""

    def test_host_by_another_name_does_not_exist(self):
        for name in ('H1', 'h1 '):
            for call in (
                    lambda name: host_admin.check_not_running(
                        self.db, name, lambda: self.fail('asked')),
                    lambda name: host_admin.delete(self.db, name),
                    lambda name: device_admin.list_all(self.db, name),
                    lambda name: group_admin.set_(
                        self.db, name, 'H100', 'breadth_first'),
                    lambda name: self.claim(host=name)):
                self.assertRaises(
                    (exception.NotFound, exception.ClaimDenied), call, name)
        self.assertEqual({'available': 8}, self.states())

    def test_host_renamed_to_upper_case_is_refused_with_the_reason(self):
        exc = self.assertRaises(
            exception.Conflict, hosts.store, self.db,
            base.scan(base.EIGHT, host='H1'))
        self.assertIn('is reported by host h1 already', str(exc))

    def test_keys_of_another_name_stay_valid(self):
        self.db.write(lambda session: [
            caller_key_db.add(session, 'host', name, 'm')
            for name in ('cmp1', 'CMP1', 'cmp1 ')])
        self.db.write(lambda session: caller_key_db.revoke(
            session, 'host', 'CMP1', None))
        with self.db.reader() as session:
            self.assertEqual(
                {'cmp1', 'cmp1 '},
                {key.name for key in caller_key_db.all_keys(session)
                 if key.revoked_at is None})

    def test_variant_by_another_name_does_not_exist(self):
        for name in ('h100', 'H100 '):
            for call in (variant_admin.show, variant_admin.delete):
                self.assertRaises(exception.NotFound, call, self.db, name)
        self.assertEqual(['H100'], [
            variant.name for variant in variant_admin.list_all(self.db)])
