# SPDX-License-Identifier: Apache-2.0
"""Tests of changes of variants, chunk by chunk."""

import dataclasses
import functools
import uuid

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import variant_changes
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.conductor import variant_worker
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.conductor.admin import vgpu_type as vgpu_type_admin
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import models
from gpgpu_plugin.objects import admin
from tests.fixtures import database
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import test_manager

LATE = variant_changes.Caller(is_over=lambda: True)
H100 = admin.VariantInfo(name='H100', vendor='10de', device='2330')
A100 = admin.VariantInfo(name='A100', vendor='10de', device='20b0')


class ChangeCase(base.ConductorTestCase):
    """Five hosts with one GPU each, of which a chunk has two."""

    functions = ()
    variant = False
    count = 5

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.variant_changes.CHUNK', 2))
        for number in range(1, self.count + 1):
            self.report(f'h{number}')

    def report(self, name, device='2330'):
        hosts.store(self.db, base.scan(
            [base.function(0, device=device)], host=name,
            node_uuid=self.node_uuid(name)))

    @staticmethod
    def node_uuid(name):
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))

    def change_id(self):
        with self.db.reader() as session:
            return session.scalars(sa.select(models.VariantChange.id)).one()

    def has_change(self):
        with self.db.reader() as session:
            return bool(session.scalars(
                sa.select(models.VariantChange.id)).all())

    def advance(self):
        return variant_changes.advance(self.db, self.change_id())

    def run_all(self):
        variant_changes.run(self.db, self.change_id(), lambda hosts: None)

    def variants(self):
        """Return the variant of each host's only GPU."""
        return [device.variant for device in device_admin.list_all(self.db)]

    def shown(self, name='H100'):
        info = variant_admin.show(self.db, name)
        return info.status, info.hosts_pending

    def generations(self):
        return [host.generation for host in host_admin.list_all(self.db)]

    def claim_unchecked(self, **kwargs):
        """Claim as a transaction that read the variant before its change."""
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.domain.group.GroupCapacity.refusals',
                lambda *args: iter(())):
            return self.claim(1, **kwargs)


class ChunkTest(ChangeCase):

    def test_variant_is_created_chunk_by_chunk(self):
        refreshed = []
        variant_admin.create(self.db, H100, LATE)
        self.assertEqual(('applying', 5), self.shown())
        for changed, pending in ((['h1', 'h2'], 3), (['h3', 'h4'], 1),
                                 (['h5'], 0)):
            self.assertEqual(changed, self.advance())
            self.assertEqual(('applying', pending), self.shown())
        self.assertEqual([], self.advance())
        self.assertEqual(('ready', 0), self.shown())
        self.assertFalse(self.has_change())
        variant_admin.delete(self.db, 'H100', variant_changes.Caller(
            tell=refreshed.append))
        self.assertEqual([['h1', 'h2'], ['h3', 'h4'], ['h5'], []], refreshed)

    def test_only_hosts_with_its_ids_are_locked(self):
        self.report('h2', '1111')
        locked = []
        lock_ids = host_db.lock_ids

        def lock(session, ids, **kwargs):
            locked.extend(ids)
            return lock_ids(session, ids, **kwargs)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.host.lock_ids', lock))
        variant_admin.create(self.db, dataclasses.replace(
            A100, device='1111'))
        self.assertEqual(1, len(locked))
        variant_admin.create(self.db, dataclasses.replace(
            A100, name='A40', device='2235'))
        self.assertEqual(1, len(locked))

    def test_set_reaches_hosts_of_the_old_and_of_the_new_ids(self):
        self.report('h2', '1111')
        variant_admin.create(self.db, H100)
        self.assertEqual(['H100', None, 'H100', 'H100', 'H100'],
                         self.variants())
        variant_admin.set_(self.db, dataclasses.replace(
            H100, device='1111'))
        self.assertEqual([None, 'H100', None, None, None], self.variants())

    def test_variant_that_is_deleted_exists_until_no_host_has_it(self):
        variant_admin.create(self.db, H100)
        variant_admin.delete(self.db, 'H100', LATE)
        self.advance()
        self.assertEqual(('deleting', 3), self.shown())
        self.assertEqual([None, None, *['H100'] * 3], self.variants())
        self.run_all()
        self.assertRaises(exception.NotFound, self.shown)
        self.assertEqual([None] * 5, self.variants())

    def test_group_that_a_report_created_meanwhile_is_removed(self):
        variant_admin.create(self.db, H100)
        with self.db.reader() as session:
            stray = session.scalars(sa.select(models.Group)).first()
            host_id, variant_id = stray.host_id, stray.variant_id
        variant_admin.delete(self.db, 'H100', LATE)
        for _ in range(3):
            self.advance()
        with self.db.writer() as session:
            session.add(models.Group(host_id=host_id, variant_id=variant_id,
                                     provider_uuid='p'))
        self.run_all()
        self.assertFalse(self.has_change())
        self.assertRaises(exception.NotFound, self.shown)

    def test_two_variants_of_one_device_are_applied_in_any_order(self):
        special = dataclasses.replace(
            H100, name='S', subsystem_vendor='10de', subsystem='16c1')
        variant_admin.create(self.db, H100, LATE)
        first = self.change_id()
        variant_admin.create(self.db, special)
        variant_changes.run(self.db, first, lambda hosts: None)
        self.assertEqual(['S'] * 5, self.variants())


class ReportTest(ChangeCase):
    """Hosts that report while a change is applied."""

    def test_host_that_reports_between_two_chunks_is_right(self):
        variant_admin.create(self.db, H100, LATE)
        self.report('h4')
        self.assertEqual([None] * 3 + ['H100', None], self.variants())
        self.run_all()
        self.assertEqual(['H100'] * 5, self.variants())
        variant_admin.delete(self.db, 'H100', LATE)
        self.report('h4')
        self.assertEqual(['H100'] * 3 + [None, 'H100'], self.variants())
        self.run_all()
        self.assertEqual([None] * 5, self.variants())

    def test_host_that_reports_first_while_a_change_is_applied_is_right(self):
        variant_admin.create(self.db, H100, LATE)
        self.report('h6')
        self.run_all()
        self.report('h7')
        self.assertEqual(['H100'] * 7, self.variants())


class ClaimTest(ChangeCase):

    def setUp(self):
        super().setUp()
        variant_admin.create(self.db, H100)

    def denied(self, **kwargs):
        exc = self.assertRaises(
            exception.ClaimDenied, self.claim, 1, **kwargs)
        self.assertEqual('variant_changing', exc.reason)
        return str(exc)

    def test_variant_that_is_deleted_or_changed_cannot_be_claimed(self):
        variant_admin.delete(self.db, 'H100', LATE)
        self.assertIn('deleting', self.denied())
        self.run_all()
        variant_admin.create(self.db, H100)
        variant_admin.set_(self.db, dataclasses.replace(
            H100, subsystem_vendor='10de', subsystem='16c1'), LATE)
        self.advance()
        self.assertIn('changing', self.denied())
        self.assertIn('changing', self.denied(host='h5'))
        self.run_all()
        self.claim(1)

    def test_offer_changes_while_devices_are_assigned_and_claimed(self):
        granted = self.claim(1, host='h1')
        before = self.generations()
        variant_admin.set_(self.db, dataclasses.replace(
            H100, traits=('CUSTOM_X',), mix_policy='any_mix'), LATE)
        self.assertEqual(['h1', 'h2'], self.advance())
        self.assertEqual(('applying', 3), self.shown())
        self.claim(1, 'i2', host='h2')
        self.claim(1, 'i3', host='h5')
        self.run_all()
        self.assertEqual(('ready', 0), self.shown())
        self.assertNotIn(
            'change', variant_admin.show(self.db, 'H100').reason or '')
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

    def test_claims_of_other_variants_go_on(self):
        self.report('h6', '20b0')
        variant_admin.create(self.db, A100, LATE)
        self.advance()
        self.claim(1, 'i1', host='h6', variant='A100')
        self.claim(1, 'i2', host='h2')
        self.assertEqual(('applying', 0), self.shown('A100'))

    def test_deletion_is_undone_if_an_instance_got_a_device(self):
        variant_admin.delete(self.db, 'H100', LATE)
        self.advance()
        self.claim_unchecked(host='h4')
        self.assertEqual([None, None, *['H100'] * 3], self.variants())
        exc = self.assertRaises(exception.Conflict, self.run_all)
        self.assertIn('instance i1 got a device', str(exc))
        self.assertIn('the deletion was undone', str(exc))
        self.assertIn('created again with the allocation policy',
                      str(exc))
        self.assertEqual(('applying', 5), self.shown())
        self.run_all()
        self.assertEqual(('ready', 0), self.shown())
        self.assertEqual(['H100'] * 5, self.variants())
        self.assertIn('the deletion was undone',
                      variant_admin.show(self.db, 'H100').reason)
        self.claim(1, 'i2')

    def test_change_is_undone_if_an_instance_got_a_device(self):
        variant_admin.set_(self.db, dataclasses.replace(
            H100, device='20b0', resource_class='CUSTOM_X'), LATE)
        self.advance()
        with self.db.engine.begin() as connection:
            # The claim still saw the old resource class.
            connection.execute(sa.update(models.Variant).values(
                resource_class='CUSTOM_GPU_H100'))
        self.claim_unchecked(host='h4')
        self.assertRaises(exception.Conflict, self.run_all)
        self.run_all()
        info = variant_admin.show(self.db, 'H100')
        self.assertEqual(
            ('2330', 'CUSTOM_GPU_H100', 'ready', 5),
            (info.device, info.resource_class, info.status, info.devices))
        self.assertIn('the change was undone', info.reason)

    def test_reason_of_an_undone_change_goes_with_the_next_change(self):
        variant_admin.delete(self.db, 'H100', LATE)
        granted = self.claim_unchecked()
        self.assertRaises(exception.Conflict, self.run_all)
        self.run_all()
        releases.release(self.db, base.uuids(granted))
        changed = variant_admin.set_(self.db, H100)
        self.assertNotIn('change', changed.reason or '')


class BusyTest(ChangeCase):
    """Hosts that another transaction has locked."""

    def setUp(self):
        super().setUp()
        self.locked = {'h1', 'h2'}
        self.waited = []
        lock_ids = host_db.lock_ids

        def lock(session, ids, *, skip_locked=False):
            found = lock_ids(session, ids, skip_locked=skip_locked)
            free = [host for host in found if host.name not in self.locked]
            if len(free) < len(found) and not skip_locked:
                self.waited += [host.name for host in found]
                raise exception.DatabaseBusy(reason='locked')
            return free
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.host.lock_ids', lock))

    def test_host_that_is_locked_delays_no_other(self):
        self.locked = {'h1'}
        variant_admin.create(self.db, H100)
        self.assertEqual(('applying', 1), self.shown())
        self.assertEqual([None, *['H100'] * 4], self.variants())
        self.assertEqual({'h1'}, set(self.waited))
        self.locked.clear()
        self.run_all()
        self.assertEqual(('ready', 0), self.shown())
        self.assertEqual(['H100'] * 5, self.variants())

    def test_chunk_that_exceeds_a_limit_is_done_host_by_host(self):
        self.locked.clear()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.variant_changes.host_rows.load',
            self.refuse_two))
        variant_admin.create(self.db, H100, LATE)
        self.assertRaises(exception.DatabaseBusy, self.advance)
        self.assertEqual(('applying', 5), self.shown())
        self.run_all()
        self.assertEqual(('ready', 0), self.shown())
        self.assertEqual(['H100'] * 5, self.variants())

    def refuse_two(self, session, host_ids, load=host_rows.load):
        if len(host_ids) > 1:
            raise exception.DatabaseBusy(reason='too slow')
        return load(session, host_ids)

    def test_hosts_that_stay_locked_are_waited_for_in_turn(self):
        variant_admin.create(self.db, H100, LATE)
        self.assertRaises(exception.DatabaseBusy, self.run_all)
        self.assertEqual(['h1', 'h2', 'h1'], self.waited)
        self.assertEqual(('applying', 2), self.shown())
        self.locked = {'h2'}
        self.assertRaises(exception.DatabaseBusy, self.run_all)
        self.assertEqual(['H100', None, *['H100'] * 3], self.variants())


class FailureTest(ChangeCase):
    """A host on which changes fail, whatever it has reported."""

    failing = frozenset({'h2'})

    def setUp(self):
        super().setUp()
        apply = variant_matching.apply

        def fail(session, host, rows, variants=None):
            if host.name in self.failing:
                raise ValueError('no rule for this')
            return apply(session, host, rows, variants)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.variant_changes.variant_matching.apply',
            fail))

    def fail_all(self):
        return self.assertRaises(variant_changes.HostFailed, self.run_all)

    def change(self, subsystem='16c1'):
        """Change the ids of a variant that all hosts have.

        :param subsystem: all devices have this one by default
        """
        self.failing = frozenset()
        variant_admin.create(self.db, H100)
        self.failing = frozenset({'h2'})
        variant_admin.set_(self.db, dataclasses.replace(
            H100, subsystem_vendor='10de', subsystem=subsystem), LATE)

    def claim_of(self, host):
        """Claim as the session that has reported."""
        return claims.claim(
            self.db, self.request(1, f'of {host}', host), 60,
            hosts.origin(host, self.node_uuid(host)))

    def test_variant_reaches_the_other_hosts(self):
        variant_admin.create(self.db, H100, LATE)
        exc = self.fail_all()
        self.assertEqual('host h2', str(exc))
        self.assertIsInstance(exc.__cause__, ValueError)
        self.assertEqual(('applying', 1), self.shown())
        self.assertEqual(['H100', None, *['H100'] * 3], self.variants())
        self.assertIn('could not be applied to h2, where',
                      variant_admin.show(self.db, 'H100').reason)
        self.claim_of('h1')

    def test_change_ends_when_it_no_longer_fails(self):
        variant_admin.create(self.db, H100, LATE)
        self.fail_all()
        self.failing = frozenset()
        self.run_all()
        self.assertEqual(('ready', 0), self.shown())
        self.assertNotIn(
            'change', variant_admin.show(self.db, 'H100').reason or '')
        self.assertEqual(['H100'] * 5, self.variants())

    def test_changed_variant_can_be_claimed_on_the_other_hosts(self):
        self.change()
        self.assertEqual(('changing', 5), self.shown())
        self.fail_all()
        self.assertEqual(('applying', 1), self.shown())
        for host in ('h1', 'h3', 'h4', 'h5'):
            self.claim_of(host)

    def test_claim_waits_until_the_host_has_reported(self):
        self.change('16c0')
        self.fail_all()
        self.assertEqual([None, 'H100', None, None, None], self.variants())
        self.assertRaises(exception.SessionLost, self.claim_of, 'h2')
        self.failing = frozenset()
        hosts.begin(self.db, 'h2', self.node_uuid('h2'), expected=1)
        self.report('h2')
        self.assertEqual([None] * 5, self.variants())
        self.run_all()
        self.assertEqual(('ready', 0), self.shown())

    def test_variant_stays_closed_until_only_failing_hosts_lack_it(self):
        self.change()
        self.assertEqual([], self.advance())
        for _ in range(2):
            self.advance()
        # h1 and h2 are left, of which h1 is locked.
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.db.host.lock_ids', self.refuse_h1):
            self.assertRaises(exception.DatabaseBusy, self.advance)
            self.assertRaises(variant_changes.HostFailed, self.advance)
            self.assertEqual(('changing', 2), self.shown())
            self.assertRaises(exception.DatabaseBusy, self.advance)
        self.fail_all()
        self.assertEqual(('applying', 1), self.shown())

    def refuse_h1(self, session, ids, skip_locked=False,
                  lock_ids=host_db.lock_ids):
        found = lock_ids(session, ids, skip_locked=skip_locked)
        if 'h1' in {host.name for host in found}:
            raise exception.DatabaseBusy(reason='locked')
        return found

    def test_hosts_that_cannot_report_in_a_new_session_close_no_variant(self):
        self.change()
        self.failing = frozenset({'h1', 'h2', 'h3', 'h4'})
        for _ in range(3):
            self.fail_all()
            with self.db.reader() as session:
                lost = {host.name: host.session for host in session.scalars(
                    sa.select(models.Host).where(
                        models.Host.start_uuid.is_(None)))}
            for host, number in lost.items():
                hosts.begin(self.db, host, self.node_uuid(host),
                            expected=number)
        self.assertEqual(('applying', 4), self.shown())
        self.claim_of('h5')

    def test_deletion_waits_for_the_host_or_for_its_deletion(self):
        self.failing = frozenset()
        variant_admin.create(self.db, H100)
        self.failing = frozenset({'h2'})
        variant_admin.delete(self.db, 'H100', LATE)
        self.fail_all()
        self.assertEqual(('deleting', 1), self.shown())
        host_admin.delete(self.db, 'h2', force=True)
        self.run_all()
        self.assertRaises(exception.NotFound, self.shown)

    def test_several_failing_hosts_keep_it_from_no_other(self):
        self.failing = frozenset({'h1', 'h2', 'h4', 'h5'})
        variant_admin.create(self.db, H100, LATE)
        for _ in range(2):
            self.fail_all()
        self.assertEqual(('applying', 4), self.shown())
        self.assertEqual([None, None, 'H100', None, None], self.variants())


class TypeTest(ChangeCase):
    """A type that is enabled or disabled on all hosts."""

    def setUp(self):
        super().setUp()
        variant_admin.create(self.db, H100)

    def disable(self, host=None, caller=LATE):
        return vgpu_type_admin.set_enabled(
            self.db, 'H100', 'passthrough', host, enabled=False,
            caller=caller)

    def enabled(self):
        return [info.enabled for info in vgpu_type_admin.list_all(self.db)]

    def test_type_is_disabled_chunk_by_chunk(self):
        self.assertEqual([True] * 5, [
            info.enabled for info in self.disable()])
        self.assertEqual(('applying', 5), self.shown())
        self.assertEqual(['h1', 'h2'], self.advance())
        self.assertEqual([False] * 2 + [True] * 3, self.enabled())
        self.claim(1, host='h5')
        exc = self.assertRaises(
            exception.ClaimDenied, self.claim, 1, 'i2', host='h1')
        self.assertEqual('type_disabled', exc.reason)
        self.run_all()
        self.assertEqual(('ready', 0), self.shown())
        self.assertEqual([False] * 5, self.enabled())

    def test_host_that_reports_meanwhile_is_right_at_once(self):
        self.disable()
        self.report('h6')
        self.assertEqual([True] * 5 + [False], self.enabled())
        self.run_all()
        self.assertEqual([False] * 6, self.enabled())

    def test_only_hosts_with_a_group_are_locked(self):
        self.report('h2', '1111')
        self.disable()
        self.assertEqual(('applying', 4), self.shown())

    def test_other_changes_of_the_variant_wait(self):
        self.disable()
        for change in (
                self.disable, lambda: self.disable('h1'),
                lambda: variant_admin.set_(self.db, H100)):
            exc = self.assertRaises(exception.Conflict, change)
            self.assertIn('has yet to reach 5 hosts', str(exc))
        self.run_all()
        self.disable('h1')

    def test_type_on_one_host_is_set_although_others_are_locked(self):
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.db.host.lock_ids', lambda *args: self.fail()):
            self.disable('h2')
        self.assertEqual([True, False, True, True, True], self.enabled())

    def test_caller_who_has_given_up_changes_nothing(self):
        def give_up():
            raise exception.RequestExpired(
                method='vgpu_type_set', subject='H100', wanted=1, waited=2)
        caller = variant_changes.Caller(check_wanted=give_up)
        for host in (None, 'h1'):
            self.assertRaises(
                exception.RequestExpired, self.disable, host, caller)
        self.assertFalse(self.has_change())
        self.report('h6')
        self.assertEqual([True] * 6, self.enabled())


class PolicyTest(ChangeCase):
    """Allocation policies of groups, which their variant has by default."""

    def setUp(self):
        super().setUp()
        variant_admin.create(self.db, H100)

    def set_(self, host, policy, caller=variant_changes.PATIENT):
        return group_admin.set_(self.db, host, 'H100', policy, caller)

    def policies(self):
        return [(info.allocation_policy, info.policy_source)
                for info in group_admin.list_all(self.db)]

    def default(self, policy, caller=variant_changes.PATIENT):
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

    def changed(self, act, *args):
        """Return which hosts schedulers read again after a change."""
        before = self.generations()
        act(*args)
        if self.has_change():
            self.run_all()
        return [f'h{number}' for number, (old, new) in enumerate(
            zip(before, self.generations(), strict=True), 1) if old != new]

    def test_schedulers_get_another_policy_at_once(self):
        everywhere = [f'h{number}' for number in range(1, 6)]
        self.assertEqual([], self.changed(self.set_, 'h2', 'depth_first'))
        self.assertEqual(['h3'], self.changed(
            self.set_, 'h3', 'breadth_first'))
        self.assertEqual(
            ['h1', 'h4', 'h5'], self.changed(self.default, 'breadth_first'))
        self.assertEqual(
            ['h2'], self.changed(self.set_, None, 'breadth_first'))
        self.assertEqual(
            everywhere, self.changed(self.set_, None, 'depth_first'))

    def test_policy_of_all_hosts_replaces_that_of_each_chunk_by_chunk(self):
        self.set_('h5', 'depth_first')
        self.assertEqual(5, len(self.set_(None, 'breadth_first', LATE)))
        self.assertEqual(('applying', 5), self.shown())
        self.report('h6')
        new, old = ('breadth_first', 'variant'), ('depth_first', 'variant')
        own = ('depth_first', 'group')
        self.assertEqual([*[old] * 4, own, new], self.policies())
        self.advance()
        self.assertEqual([new, new, old, old, own, new], self.policies())
        self.claim(1, host='h1')
        self.claim(1, 'i2', host='h5')
        self.run_all()
        self.assertEqual([new] * 6, self.policies())
        self.assertEqual(('ready', 0), self.shown())

    def test_own_policies_are_unset_on_all_hosts(self):
        self.default('breadth_first')
        self.set_('h1', 'depth_first')
        self.set_(None, None)
        self.assertEqual([('breadth_first', 'variant')] * 5, self.policies())

    def test_policy_of_one_group_waits_for_that_of_all_hosts_alone(self):
        self.set_(None, 'breadth_first', LATE)
        for host in ('h1', None):
            exc = self.assertRaises(
                exception.Conflict, self.set_, host, 'depth_first')
            self.assertIn('has yet to reach 5 hosts', str(exc))
        self.run_all()
        self.default('depth_first', LATE)
        self.set_('h1', 'breadth_first')
        self.run_all()
        self.assertEqual(
            [('breadth_first', 'group'), *[('depth_first', 'variant')] * 4],
            self.policies())

    def test_only_hosts_with_a_group_are_concerned(self):
        self.report('h2', '1111')
        before = self.generations()
        self.set_(None, 'breadth_first', LATE)
        self.assertEqual(('applying', 4), self.shown())
        self.run_all()
        after = self.generations()
        self.assertEqual([True, False, True, True, True], [
            old != new for old, new in zip(before, after, strict=True)])

    def test_policy_that_does_not_exist_or_nobody_waits_for_is_not_set(self):
        def given_up():
            raise exception.RequestExpired(
                method='group_set', subject='H100', wanted=1, waited=2)
        for host in ('h1', None):
            self.assertRaises(
                exception.Invalid, self.set_, host, 'sideways')
            self.assertRaises(
                exception.RequestExpired, self.set_, host, 'breadth_first',
                variant_changes.Caller(check_wanted=given_up))
        self.assertEqual([('depth_first', 'variant')] * 5, self.policies())
        self.assertFalse(self.has_change())


class CrashTest(ChangeCase):
    """A conductor that dies after any statement of a change."""

    count = 3

    def setUp(self):
        super().setUp()
        self.worker = variant_worker.VariantWorker(
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
            self.assertFalse(self.has_change(), statements[count - 1])
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

        def change():
            group_admin.set_(self.db, None, 'H100', 'breadth_first')

        def undo():
            group_admin.set_(self.db, None, 'H100', 'depth_first')
            group_admin.set_(self.db, 'h2', 'H100', 'depth_first')
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
            self.assertFalse(self.has_change(), statements[count - 1])
            found.add(policies())
        self.assertEqual(
            {before, (('breadth_first', 'variant'),) * 3}, found)

    def test_type_is_disabled_everywhere_or_nowhere(self):
        def set_(enabled):
            vgpu_type_admin.set_enabled(
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
                          vgpu_type_admin.list_all(self.db)})
            host_admin.delete(self.db, 'h9')
        self.assertEqual({frozenset([True]), frozenset([False])},
                         set(map(frozenset, found)))


class TwoConductorsTest(ChangeCase):

    def test_part_that_another_conductor_did_is_not_done_again(self):
        variant_admin.create(self.db, H100, LATE)
        with self.db.reader() as session:
            part = variant_changes._next_part(session, self.change_id())
        self.assertEqual(['h1', 'h2'], self.advance())
        before = self.generations()
        for step in (variant_changes._apply, variant_changes._finish):
            self.assertIsNone(self.db.write(
                functools.partial(step, part=part)))
        self.assertEqual(before, self.generations())
        self.assertEqual(('applying', 3), self.shown())
