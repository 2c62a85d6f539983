# SPDX-License-Identifier: Apache-2.0
"""Tests of changes of variants, which hosts take over one by one."""

import dataclasses
import threading
import uuid

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.objects import admin
from tests.fixtures import database
from tests.fixtures import hosts
from tests.fixtures import patience
from tests.unit.conductor import base
from tests.unit.conductor import test_manager

LATE = variant_sweep.SweepCaller(is_over=lambda: True)
H100 = admin.VariantInfo(name='H100', vendor='10de', device='2330')
A100 = admin.VariantInfo(name='A100', vendor='10de', device='20b0')


class ChangeCase(base.ConductorTestCase):
    """Five hosts with one GPU each."""

    functions = ()
    variant = False
    count = 5

    def setUp(self):
        super().setUp()
        for number in range(1, self.count + 1):
            self.report(f'h{number}')

    def report(self, name, device='2330'):
        """Report the only GPU of a host, which is made anew for other ids."""
        if device != '2330':
            host_admin.delete(self.db, name, force=True)
        hosts.store(self.db, base.scan(
            [base.function(0, device=device)], host=name,
            node_uuid=self.node_uuid(name)))

    @staticmethod
    def node_uuid(name):
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))

    def advance(self, number=1):
        """Bring the next hosts up to date; return those that changed."""
        left, changed = [None] * number, []
        variant_sweep.run(self.db, variant_sweep.SweepCaller(
            is_over=lambda: not left or left.pop(), tell=changed.append))
        return changed

    def run_all(self):
        variant_sweep.run(self.db)

    def has_rest(self):
        """Return whether anything is left to be done for a change."""
        with self.db.reader() as session:
            return variant_db.is_prunable(session) or bool(
                variant_db.hosts_behind(session))

    def variants(self):
        """Return the variant of each host's only GPU."""
        return [device.variant for device in device_admin.list_all(self.db)]

    def shown(self, name='H100'):
        info = variant_admin.show(self.db, name)
        return info.status, info.hosts_pending

    def generations(self):
        return [host.generation for host in host_admin.list_all(self.db)]


class SweepTest(ChangeCase):

    def test_variant_is_created_host_by_host(self):
        changed = []
        variant_admin.create(self.db, H100, LATE)
        self.assertEqual(('applying', 5), self.shown())
        for number in range(1, 6):
            self.assertEqual([f'h{number}'], self.advance())
            self.assertEqual(
                ('applying', 5 - number) if number < 5 else ('ready', 0),
                self.shown())
        self.assertFalse(self.has_rest())
        variant_admin.delete(self.db, 'H100', variant_sweep.SweepCaller(
            tell=changed.append))
        self.assertEqual([f'h{number}' for number in range(1, 6)], changed)

    def test_host_that_is_up_to_date_by_now_is_not_written(self):
        variant_admin.create(self.db, H100)
        # As if somebody else had written before the sweep came to the host.
        with self.db.writer() as session:
            behind = list(session.scalars(sa.select(tables.HOSTS.c.id)))
            session.execute(sa.update(tables.TYPES).values(
                remaining_capacity=99))
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.db.variant.hosts_behind', lambda session: behind))
        self.run_all()
        with self.db.reader() as session:
            self.assertEqual([99] * 5, session.scalars(sa.select(
                tables.TYPES.c.remaining_capacity)).all())

    def test_host_without_such_devices_does_not_change(self):
        self.report('h2', '1111')
        before = self.generations()
        variant_admin.create(self.db, H100)
        self.assertEqual([True, False, True, True, True], [
            old != new for old, new in zip(
                before, self.generations(), strict=True)])
        self.assertEqual(('ready', 0), self.shown())

    def test_set_reaches_hosts_of_the_old_and_of_the_new_ids(self):
        self.report('h2', '1111')
        variant_admin.create(self.db, H100)
        variant_admin.set_(self.db, dataclasses.replace(
            H100, device='1111'))
        self.assertEqual([None, 'H100', None, None, None], self.variants())

    def test_variant_that_is_deleted_exists_until_no_host_has_it(self):
        variant_admin.create(self.db, H100)
        variant_admin.delete(self.db, 'H100', LATE)
        self.advance(2)
        self.assertEqual(('deleting', 3), self.shown())
        self.assertEqual([None, None, *['H100'] * 3], self.variants())
        for call, args in (
                (variant_admin.delete, ('H100',)),
                (variant_admin.set_, (H100,)),
                (variant_admin.create, (H100,))):
            self.assertRaises(exception.Conflict, call, self.db, *args)
        self.run_all()
        self.assertRaises(exception.NotFound, self.shown)
        self.assertEqual([None] * 5, self.variants())

    def test_two_changes_are_made_in_one_go(self):
        special = dataclasses.replace(
            H100, name='S', subsystem_vendor='10de', subsystem='16c1')
        variant_admin.create(self.db, H100, LATE)
        variant_admin.create(self.db, special, LATE)
        self.run_all()
        self.assertEqual(['S'] * 5, self.variants())
        self.assertEqual(('ready', 0), self.shown())

    def test_host_that_reports_is_up_to_date(self):
        variant_admin.create(self.db, H100, LATE)
        self.report('h4')
        self.report('h6')
        self.assertEqual([None] * 3 + ['H100', None, 'H100'],
                         self.variants())
        self.assertEqual(('applying', 4), self.shown())
        self.run_all()
        self.assertEqual(['H100'] * 6, self.variants())

    def test_report_without_news_brings_the_host_up_to_date(self):
        for _ in range(2):
            self.report('h4')
        variant_admin.create(self.db, H100, LATE)
        self.report('h4')
        self.assertEqual('H100', self.variants()[3])

    def test_nothing_to_do_is_two_statements(self):
        with self.statements() as found:
            self.run_all()
        # SQLite begins with a statement of its own.
        self.assertEqual(['SELECT', 'SELECT'], [
            statement.split()[0] for statement in found
            if statement != 'BEGIN'])


class ClaimTest(ChangeCase):

    def setUp(self):
        super().setUp()
        variant_admin.create(self.db, H100)

    def denied(self, **kwargs):
        exc = self.assertRaises(
            exception.ClaimDenied, self.claim, 1, **kwargs)
        return exc.reason

    def test_claim_goes_by_the_newest_variant(self):
        variant_admin.set_(self.db, dataclasses.replace(
            H100, subsystem_vendor='10de', subsystem='16c0'), LATE)
        self.assertEqual(['H100'] * 5, self.variants())
        self.assertEqual('no_such_group', self.denied(host='h5'))
        variant_admin.set_(self.db, H100, LATE)
        self.claim(1, host='h5')
        self.assertEqual(('applying', 4), self.shown())

    def test_variant_that_is_deleted_cannot_be_claimed(self):
        variant_admin.delete(self.db, 'H100', LATE)
        self.assertEqual('no_such_group', self.denied(host='h5'))

    def test_offer_changes_while_devices_are_assigned_and_claimed(self):
        granted = self.claim(1, host='h1')
        before = self.generations()
        variant_admin.set_(self.db, dataclasses.replace(
            H100, traits=('CUSTOM_X',), mix_policy='any_mix'), LATE)
        self.claim(1, 'i3', host='h5')
        self.run_all()
        self.assertEqual(('ready', 0), self.shown())
        for old, new in zip(before, self.generations(), strict=True):
            self.assertLess(old, new)
        [assigned] = device_admin.list_all(self.db, host='h1')
        self.assertEqual(
            (granted.assignments[0].device_uuid, 'i1', 'provisioning'),
            (assigned.uuid, assigned.used_by, assigned.state))

    def test_identity_of_a_device_that_is_assigned_stays(self):
        self.claim(1, host='h4')
        for field, value in (('device', '20b0'), ('revision', 'a1'),
                             ('resource_class', 'CUSTOM_X')):
            exc = self.assertRaises(
                exception.Conflict, variant_admin.set_, self.db,
                dataclasses.replace(
                    H100, traits=('CUSTOM_X',), **{field: value}))
            for words in (
                    'variant H100: instance i1 has a device',
                    f'that {field.replace("_", " ")} cannot change',
                    '--variant H100 --state assigned', 'resize them'):
                self.assertIn(words, str(exc))
        self.assertEqual((), variant_admin.show(self.db, 'H100').traits)

    def claimed_meanwhile(self, change):
        """Claim in h4 in a transaction that the change does not see."""
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.conductor.admin.variant._check_unused',
                lambda *args: None):
            granted = self.claim(1, host='h4')
            change()
        return granted

    def free(self, granted):
        claims.activate(self.db, base.uuids(granted))
        releases.release(self.db, base.uuids(granted))
        self.clean_all()

    def test_assigned_device_keeps_a_deleted_variant_until_it_is_free(self):
        granted = self.claimed_meanwhile(
            lambda: variant_admin.delete(self.db, 'H100'))
        self.assertEqual([None] * 3 + ['H100', None], self.variants())
        self.assertEqual(('deleting', 0), self.shown())
        self.free(granted)
        self.run_all()
        self.assertRaises(exception.NotFound, self.shown)
        self.assertEqual([None] * 5, self.variants())

    def test_assigned_device_keeps_a_changed_variant_until_it_is_free(self):
        granted = self.claimed_meanwhile(
            lambda: variant_admin.set_(self.db, dataclasses.replace(
                H100, device='20b0')))
        self.assertEqual([None] * 3 + ['H100', None], self.variants())
        self.free(granted)
        self.assertEqual([None] * 5, self.variants())


class OtherHostsTest(ChangeCase):
    """A host that is locked, or on which changes fail."""

    def keep(self, *names):
        """Let other transactions have the locks of hosts."""
        lock_ids = host_db.lock_ids

        def lock(session, ids, *, skip_locked=False):
            return [host for host in lock_ids(
                session, ids, skip_locked=skip_locked)
                if not skip_locked or host.name not in names]
        return fixtures.MonkeyPatch('gpgpu_plugin.db.host.lock_ids', lock)

    def fail(self, *names):
        """Let changes fail on hosts."""
        matched = variant_matching.matched

        def failing(rows, variants):
            if rows.host.name in names:
                raise ValueError('no rule for this')
            return matched(rows, variants)
        return fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.variant_matching.matched', failing)

    def test_host_that_is_locked_or_fails_delays_no_other(self):
        for fault in self.keep('h1', 'h3'), self.fail('h1', 'h3'):
            log = self.useFixture(fixtures.FakeLogger())
            with fault:
                variant_admin.create(self.db, H100)
                self.assertEqual(('applying', 2), self.shown())
                self.assertEqual([None, 'H100', None, 'H100', 'H100'],
                                 self.variants())
                self.claim(1, host='h2', instance=f'i{id(fault)}')
            self.run_all()
            self.assertEqual(('ready', 0), self.shown())
            releases.abort(self.db, base.uuids(self.claim(
                1, host='h2', instance=f'i{id(fault)}')),
                touched=False, fault=None)
            variant_admin.delete(self.db, 'H100')
        self.assertIn('no rule for this', log.output)

    def test_claim_fails_where_the_change_does(self):
        with self.fail('h1'):
            variant_admin.create(self.db, H100)
            self.assertRaises(ValueError, self.claim, 1, host='h1')
            self.claim(1, 'i2', host='h2')
        self.claim(1, host='h1')

    def test_deletion_waits_for_the_host_or_for_its_deletion(self):
        variant_admin.create(self.db, H100)
        with self.fail('h2'):
            variant_admin.delete(self.db, 'H100')
            self.assertEqual(('deleting', 1), self.shown())
        host_admin.delete(self.db, 'h2', force=True)
        self.run_all()
        self.assertRaises(exception.NotFound, self.shown)


class TypeTest(ChangeCase):
    """A type that is enabled or disabled on all hosts."""

    def setUp(self):
        super().setUp()
        variant_admin.create(self.db, H100)

    def set_(self, host=None, caller=LATE, *, enabled=False):
        return group_admin.set_type_enabled(
            self.db, 'H100', 'passthrough', host, enabled=enabled,
            caller=caller)

    def enabled(self):
        return [info.enabled for info in group_admin.list_types(self.db)]

    def test_type_is_disabled_host_by_host(self):
        self.assertEqual([True] * 5, [info.enabled for info in self.set_()])
        self.assertEqual(('applying', 5), self.shown())
        self.assertEqual(['h1', 'h2'], self.advance(2))
        self.assertEqual([False] * 2 + [True] * 3, self.enabled())
        for host in ('h1', 'h5'):
            exc = self.assertRaises(
                exception.ClaimDenied, self.claim, 1, host=host)
            self.assertEqual('type_disabled', exc.reason)
        self.run_all()
        self.assertEqual(('ready', 0), self.shown())
        self.assertEqual([False] * 5, self.enabled())
        self.assertFalse(self.has_rest())

    def test_host_that_reports_meanwhile_is_right_at_once(self):
        self.set_()
        self.report('h6')
        self.assertEqual([True] * 5 + [False], self.enabled())
        self.run_all()
        self.assertEqual([False] * 6, self.enabled())

    def test_later_of_two_settings_counts(self):
        self.set_()
        self.set_('h2', enabled=True)
        self.assertEqual([True] * 5, self.enabled())
        self.run_all()
        self.assertEqual([False, True, False, False, False], self.enabled())
        self.set_('h3', enabled=True)
        self.set_()
        self.set_(enabled=True)
        self.run_all()
        self.assertEqual([True] * 5, self.enabled())

    def test_type_of_another_variant_on_the_host_stays_enabled(self):
        variant_admin.create(self.db, A100)
        hosts.store(self.db, base.scan(
            [base.function(0), base.function(1, device='20b0')], host='h1',
            node_uuid=self.node_uuid('h1')))
        self.set_('h1')
        self.assertEqual({'A100': True, 'H100': False}, {
            info.variant: info.enabled
            for info in group_admin.list_types(self.db, 'h1')})

    def test_caller_who_has_given_up_changes_nothing(self):
        def give_up():
            raise exception.RequestExpired(
                method='vgpu_type_set', subject='H100', wanted=1, waited=2)
        caller = variant_sweep.SweepCaller(check_wanted=give_up)
        for host in (None, 'h1'):
            self.assertRaises(
                exception.RequestExpired, self.set_, host, caller)
        self.assertFalse(self.has_rest())
        self.report('h6')
        self.assertEqual([True] * 6, self.enabled())


class PolicyTest(ChangeCase):
    """Allocation policies of groups, which their variant has by default."""

    def setUp(self):
        super().setUp()
        variant_admin.create(self.db, H100)

    def set_(self, host, policy, caller=variant_sweep.PATIENT):
        return group_admin.set_(self.db, host, 'H100', policy, caller)

    def policies(self):
        return [(info.allocation_policy, info.policy_source)
                for info in group_admin.list_all(self.db)]

    def default(self, policy, caller=variant_sweep.PATIENT):
        variant_admin.set_(self.db, dataclasses.replace(
            variant_admin.show(self.db, 'H100'),
            allocation_policy=policy), caller)

    def test_groups_have_the_policy_of_their_variant_but_for_their_own(self):
        self.assertEqual([('depth_first', 'variant')] * 5, self.policies())
        self.set_('h2', 'depth_first')
        self.default('breadth_first')
        self.report('h6')
        new = ('breadth_first', 'variant')
        self.assertEqual(
            [new, ('depth_first', 'group'), new, new, new, new],
            self.policies())
        self.set_('h2', None)
        self.assertEqual([new] * 6, self.policies())

    def test_policy_of_the_variant_reaches_hosts_later(self):
        self.set_('h5', 'depth_first')
        self.default('breadth_first', LATE)
        self.assertEqual(('applying', 5), self.shown())
        self.report('h6')
        new, old = ('breadth_first', 'variant'), ('depth_first', 'variant')
        own = ('depth_first', 'group')
        self.assertEqual([*[old] * 4, own, new], self.policies())
        self.advance(2)
        self.claim(1, host='h5')
        self.assertEqual([new, new, old, old, own, new], self.policies())
        self.run_all()
        self.assertEqual([*[new] * 4, own, new], self.policies())
        self.assertEqual(('ready', 0), self.shown())

    def test_policy_that_does_not_exist_or_nobody_waits_for_is_not_set(self):
        def given_up():
            raise exception.RequestExpired(
                method='group_set', subject='H100', wanted=1, waited=2)
        self.assertRaises(exception.Invalid, self.set_, 'h1', 'sideways')
        self.assertRaises(
            exception.RequestExpired, self.set_, 'h1', 'breadth_first',
            variant_sweep.SweepCaller(check_wanted=given_up))
        self.assertEqual([('depth_first', 'variant')] * 5, self.policies())
        self.assertFalse(self.has_rest())


class ThreadTest(ChangeCase):

    def setUp(self):
        super().setUp()
        self.compute = test_manager.FakeComputeAPI()
        self.sweep = variant_sweep.VariantSweep(self.db, self.compute)

    def test_change_that_was_left_is_ended_and_its_hosts_are_refreshed(self):
        variant_admin.create(self.db, H100, LATE)
        self.advance(2)
        self.sweep.run_once()
        self.assertEqual(('ready', 0), self.shown())
        self.assertEqual(['h3', 'h4', 'h5'], self.compute.refreshed)

    def test_database_that_is_away_ends_nothing(self):
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.db.variant.hosts_behind',
            side_effect=RuntimeError('away')))
        log = self.useFixture(fixtures.FakeLogger())
        self.sweep.run_once()
        self.assertIn('trying again in 60 s', log.output)

    def test_thread_searches_at_its_start_and_when_it_is_woken(self):
        searched = threading.Semaphore(0)
        self.sweep.run_once = searched.release
        self.sweep.start()
        self.addCleanup(self.sweep.stop)
        self.assertTrue(searched.acquire(timeout=patience.LONG))
        self.sweep.wake()
        self.assertTrue(searched.acquire(timeout=patience.LONG))

    def test_stop_ends_the_thread(self):
        variant_admin.create(self.db, H100, LATE)
        self.sweep.start()
        self.sweep.stop()
        self.sweep.stop()
        self.assertEqual([], [
            thread.name for thread in threading.enumerate()
            if thread.name == 'gpgpu-variants'])


class CrashTest(ChangeCase):
    """A conductor that dies after any statement of a change."""

    count = 3

    def setUp(self):
        super().setUp()
        self.worker = variant_sweep.VariantSweep(
            self.db, test_manager.FakeComputeAPI())

    def outcomes(self, change, undo):
        """Return what there is after each crash and the next conductor."""
        with database.cut_after(self.db.engine, None) as statements:
            change()
        undo()
        found = []
        for count in range(1, len(statements) + 1):
            with database.cut_after(self.db.engine, count):
                change()
            self.worker.run_once()
            self.assertFalse(self.has_rest(), statements[count - 1])
            found.append((
                [(info.name, info.device, info.status)
                 for info in variant_admin.list_all(self.db)],
                self.variants()))
            undo()
        # Some crashes came before the change was made.
        self.assertNotEqual(found[0], found[-1])
        return [value for number, value in enumerate(found)
                if value not in found[:number]]

    def test_create_is_made_everywhere_or_nowhere(self):
        def undo():
            if variant_admin.list_all(self.db):
                variant_admin.delete(self.db, 'H100')
        self.assertEqual(
            [([], [None] * 3), ([('H100', '2330', 'ready')], ['H100'] * 3)],
            self.outcomes(
                lambda: variant_admin.create(self.db, H100), undo))

    def test_delete_is_made_everywhere_or_nowhere(self):
        def undo():
            if not variant_admin.list_all(self.db):
                variant_admin.create(self.db, H100)
        undo()
        self.assertEqual(
            [([('H100', '2330', 'ready')], ['H100'] * 3), ([], [None] * 3)],
            self.outcomes(
                lambda: variant_admin.delete(self.db, 'H100'), undo))

    def test_set_is_made_everywhere_or_nowhere(self):
        variant_admin.create(self.db, H100)
        self.report('h2', '20b0')
        self.assertEqual(
            [([('H100', '2330', 'ready')], ['H100', None, 'H100']),
             ([('H100', '20b0', 'ready')], [None, 'H100', None])],
            self.outcomes(
                lambda: variant_admin.set_(self.db, dataclasses.replace(
                    H100, device='20b0')),
                lambda: variant_admin.set_(self.db, H100)))

    def test_policy_is_set_everywhere_or_nowhere(self):
        def policies():
            return tuple(
                (info.allocation_policy, info.policy_source)
                for info in group_admin.list_all(self.db))

        def set_(policy):
            variant_admin.set_(self.db, dataclasses.replace(
                H100, allocation_policy=policy))

        def change():
            set_('breadth_first')

        def undo():
            set_('depth_first')
        variant_admin.create(self.db, H100)
        undo()
        before = policies()
        with database.cut_after(self.db.engine, None) as statements:
            change()
        found = set()
        for count in range(1, len(statements) + 1):
            undo()
            with database.cut_after(self.db.engine, count):
                change()
            self.worker.run_once()
            self.assertFalse(self.has_rest(), statements[count - 1])
            found.add(policies())
        self.assertEqual(
            {before, (('breadth_first', 'variant'),) * 3}, found)

    def test_type_is_disabled_everywhere_or_nowhere(self):
        def set_(enabled):
            group_admin.set_type_enabled(
                self.db, 'H100', 'passthrough', None, enabled=enabled)
        variant_admin.create(self.db, H100)
        found = []
        with database.cut_after(self.db.engine, None) as statements:
            set_(False)
        for count in range(1, len(statements) + 1):
            set_(True)
            with database.cut_after(self.db.engine, count):
                set_(False)
            self.worker.run_once()
            self.assertEqual(('ready', 0), self.shown())
            self.report('h9')
            found.append({info.enabled for info in
                          group_admin.list_types(self.db)})
            host_admin.delete(self.db, 'h9')
        self.assertEqual({frozenset([True]), frozenset([False])},
                         set(map(frozenset, found)))
