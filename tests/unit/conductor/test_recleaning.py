# SPDX-License-Identifier: Apache-2.0

import dataclasses

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import admin
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.fixtures import released
from tests.fixtures import rows
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


class CleanAgainTest(base.ConductorTestCase):

    def set_policy(self, policy, **fields):
        return variant_admin.set_(self.db, dataclasses.replace(
            variant_admin.show(self.db, 'H100'), cleaning_policy=policy,
            **fields))

    def use(self, count=1):
        """Let instances use GPUs, which are cleaned after them."""
        releases.release(self.db, base.uuids(self.boot(count)))
        self.clean_all()

    def events(self):
        with self.db.reader() as session:
            return session.scalars(sa.select(event_db.TABLE.c.detail).where(
                event_db.TABLE.c.kind == 'distrust')).all()

    def test_gpu_that_lacks_a_step_becomes_dirty(self):
        self.set_policy('reset-only')
        self.use(2)
        self.assertEqual({'available': 8}, self.states())
        self.set_policy('default')
        self.assertEqual({'available': 6, 'dirty': 2}, self.states())
        self.assertEqual(
            ['its last cleaning passed reset+settings, and the cleaning '
             'policy of its variant requires more'] * 2, self.events())
        self.clean_all()
        self.assertEqual({'available': 8}, self.states())

    def test_host_offers_it_no_longer_and_cleans_it(self):
        self.set_policy('reset-only')
        self.use()
        notified = []
        variant_admin.set_(
            self.db, dataclasses.replace(
                variant_admin.show(self.db, 'H100'),
                cleaning_policy='default'),
            variant_admin.variant_sweep.SweepCaller(tell=notified.append))
        self.assertEqual(['h1'], notified)
        [task] = cleaning.tasks(self.db, 'h1')
        self.assertEqual(('reset', 'settings', 'canary'), task.steps)

    def test_gpu_that_never_had_a_tenant_stays_available(self):
        self.set_policy('reset-only')
        self.use(1)
        self.set_policy('scrub', memory_mib=81920)
        self.assertEqual({'available': 7, 'dirty': 1}, self.states())

    def test_policy_that_asks_for_less_changes_no_device(self):
        self.use(2)
        self.set_policy('reset-only')
        self.set_policy('default')
        self.assertEqual({'available': 8}, self.states())
        self.assertEqual([], self.events())

    def test_policy_changes_while_gpus_are_assigned(self):
        self.boot(3)
        shown = self.set_policy('scrub', memory_mib=81920)
        self.assertEqual(('scrub', 'ready'),
                         (shown.cleaning_policy, shown.status))
        self.assertEqual({'available': 5, 'assigned': 3}, self.states())

    def test_gpu_with_vgpus_is_left_alone(self):
        """A cleaning would reset it while guests have its vGPUs."""
        self.set_policy('reset-only')
        self.use(8)
        users = (device_rules.DeviceUser.MDEV, device_rules.DeviceUser.VF)
        hosts.store(self.db, base.scan([
            *(dataclasses.replace(function, used_by=used_by)
              for function, used_by in zip(
                  base.EIGHT[:2], users, strict=True)), *base.EIGHT[2:]]))
        self.set_policy('default')
        self.assertEqual({'available': 2, 'dirty': 6}, self.states())

    def test_gpu_is_not_claimed_before_its_host_has_the_change(self):
        self.set_policy('reset-only')
        self.use(8)
        variant_admin.set_(
            self.db, dataclasses.replace(
                variant_admin.show(self.db, 'H100'),
                cleaning_policy='default'),
            variant_admin.variant_sweep.SweepCaller(is_over=lambda: True))
        self.assertEqual({'available': 8}, self.states())
        self.assertRaises(exception.ClaimDenied, self.boot, 1)

    def test_aborted_claim_leaves_no_gpu_that_lacks_a_step(self):
        self.set_policy('reset-only')
        self.use(8)
        claimed = base.uuids(self.claim(8))
        self.set_policy('default')
        releases.abort(self.db, claimed, touched=False, fault=None)
        self.assertEqual({'dirty': 8}, self.states())

    def test_aborted_claim_of_proven_gpus_leaves_them_available(self):
        self.use(8)
        releases.abort(self.db, base.uuids(self.claim(8)), touched=False,
                       fault=None)
        self.assertEqual({'available': 8}, self.states())

    def test_gpu_that_gets_another_variant_is_judged_by_its_policy(self):
        variant_admin.create(self.db, admin.VariantInfo(
            name='SPECIAL', vendor='10de', device='2330',
            subsystem_vendor='10de', subsystem='16c1',
            cleaning_policy='reset-only'))
        self.use_variant('SPECIAL')
        variant_admin.delete(self.db, 'SPECIAL')
        self.assertEqual({'dirty': 1, 'available': 7}, self.states())

    def use_variant(self, name):
        [claimed] = self.boot(1, variant=name).assignments
        releases.release(self.db, [claimed.uuid])
        self.clean_all()


class VGPUTest(vgpu_base.VGPUTestCase):

    def test_vgpus_are_not_concerned(self):
        releases.release(self.db, base.uuids(self.ask(Q4=1)))
        [task] = cleaning.tasks(self.db, 'h1')
        self.assertEqual(('host-driver',), task.steps)
        cleaning.started(self.db, task.device_uuid, task.token, 'attempt')
        cleaning.finished(self.db, task.device_uuid, 'attempt', task.steps,
                          cleaned.results(task.steps))
        with self.db.reader() as session:
            name = session.scalars(sa.select(tables.VARIANTS.c.name)).one()
        variant_admin.set_(self.db, dataclasses.replace(
            variant_admin.show(self.db, name), cleaning_policy='scrub'))
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))

    def test_gpu_whose_vgpus_are_assigned_is_left_alone(self):
        """They may be newer than the last scan."""
        with self.db.writer() as session:
            session.execute(sa.update(tables.DEVICES).where(
                tables.DEVICES.c.kind == 'pci').values(
                    cleaned_steps='reset+settings'))
            name = session.scalars(sa.select(tables.VARIANTS.c.name)).one()
        variant = variant_admin.show(self.db, name)
        variant_admin.set_(self.db, dataclasses.replace(
            variant, cleaning_policy='reset-only'))
        self.ask(Q4=1)
        variant_admin.set_(self.db, dataclasses.replace(
            variant, cleaning_policy='default'))
        # The other GPU has no vGPU.
        self.assertEqual(1, len(cleaning.tasks(self.db, 'h1')))


class AbortTest(vgpu_base.VGPUTestCase):
    """A GPU whose only mdev was never made."""

    functions = (vgpu_base.t4(0),)
    cleaned_before = new_are_clean = False

    def abort(self, claim):
        releases.abort(self.db, base.uuids(claim), touched=False, fault=None)
        self.denied('not_enough_available', whole=1)
        self.clean_all()
        self.ask(whole=1)

    def test_new_gpu_is_cleaned_before_it_is_got_whole(self):
        self.enable('passthrough', enabled=False)
        claim = self.ask(Q4=1)
        self.enable('passthrough')
        self.abort(claim)

    def test_gpu_is_cleaned_as_a_policy_requires_since_the_claim(self):
        self.set_policy('reset-only')
        self.clean_all()
        claim = self.ask(Q4=1)
        self.set_policy('default')
        self.abort(claim)

    def set_policy(self, policy):
        variant_admin.set_(self.db, dataclasses.replace(
            variant_admin.show(self.db, 'T4'), cleaning_policy=policy))


class LostVFTest(vgpu_base.VGPUTestCase):
    """VFs that are removed before what a guest left in them was cleaned."""

    gpu = vgpu_base.PF
    functions = (gpu, vgpu_base.vf(gpu, 0), vgpu_base.vf(gpu, 1))
    bare = dataclasses.replace(gpu, sriov_numvfs=0, used_by=None)

    def setUp(self):
        super().setUp()
        claim = self.ask(Q4=1)
        claims.activate(self.db, base.uuids(claim))
        self.claimed = base.uuids(claim)

    def states(self):
        return [device.state for device in device_admin.list_all(self.db)]

    def test_gpu_is_cleaned_for_them_and_got_whole(self):
        releases.release(self.db, self.claimed)
        hosts.store(self.db, base.scan((self.bare,)))
        self.assertEqual(['dirty', 'available', 'dirty'],
                         [self.states()[0], *sorted(self.states()[1:])])
        self.denied('not_enough_available', whole=1)
        self.assertIn('only a cleaning', str(self.assertRaises(
            exception.Conflict, withdrawal.accept_clean, self.db,
            [device_admin.list_all(self.db)[0].uuid], 'new', 'op')))
        self.clean_all()
        self.end(self.ask(whole=1))
        # It is as new.
        hosts.store(self.db, base.scan(self.functions))
        self.assertEqual(['available', 'dirty'], sorted(self.states()[1:]))

    def test_gpu_is_cleaned_if_the_guest_leaves_after_them(self):
        hosts.store(self.db, base.scan((self.bare,)))
        self.denied('not_enough_available', whole=1)
        releases.release(self.db, self.claimed)
        self.denied('not_enough_available', whole=1)
        self.clean_all()
        self.ask(whole=1)

    def test_they_are_cleaned_if_they_return_before(self):
        releases.release(self.db, self.claimed)
        hosts.store(self.db, base.scan((self.bare,)))
        hosts.store(self.db, base.scan(self.functions))
        self.assertEqual('available', self.states()[0])
        self.assertIn('dirty', self.states()[1:])
        self.clean_all()
        self.assertEqual(['available'] * 3, self.states())

    def test_one_that_failed_keeps_the_gpu(self):
        releases.release(self.db, self.claimed)
        self.clean_all(passed=False)
        hosts.store(self.db, base.scan((self.bare,)))
        self.assertEqual('available', self.states()[0])
        self.denied('not_enough_available', whole=1)


def with_vfs(number, count):
    """Return a GPU with some VFs."""
    gpu = base.function(number, used_by='vf', sriov_totalvfs=count,
                        sriov_numvfs=count)
    return (gpu, *(base.function(
        number, id=f'{gpu.id}/vf{vf}', dsn=None, pf=gpu.id, vf_index=vf,
        address=f'{gpu.address[:-1]}{vf + 1}') for vf in range(count)))


class FirstSightTest(base.ConductorTestCase):
    """Devices that their host has never cleaned."""

    cleaned_before = new_are_clean = False

    def of_first(self):
        return [device.state for device in device_admin.list_all(self.db)
                if device.stable_id.startswith(base.EIGHT[0].id)]

    def test_new_gpus_are_offered_after_one_cleaning_each(self):
        self.assertEqual({'dirty': 8}, self.states())
        self.assertRaises(exception.ClaimDenied, self.claim)
        tasks = cleaning.tasks(self.db, 'h1')
        self.assertEqual([False] * 8, [task.had_guest for task in tasks])
        self.clean_all()
        self.assertEqual({'available': 8}, self.states())
        self.claim(8)

    def test_gpu_that_cannot_pass_the_policy_waits_with_the_reason(self):
        for task in cleaning.tasks(self.db, 'h1'):
            cleaning.started(
                self.db, task.device_uuid, task.token, task.token)
            cleaning.finished(self.db, task.device_uuid, task.token,
                              task.steps, cleaned.mute('canary'))
        self.assertEqual({'dirty': 8}, self.states())
        self.assertIn('waits: cleaning policy: canary inapplicable',
                      device_admin.list_all(self.db)[0].reason)

    def test_gpu_whose_first_cleaning_failed_is_quarantined(self):
        self.clean_all(passed=False)
        self.assertEqual({'quarantined': 8}, self.states())

    def test_new_gpu_with_vfs_is_not_dirty_and_its_vfs_are_cleaned(self):
        hosts.store(self.db, base.scan(
            (*with_vfs(0, 2), *base.EIGHT[1:]), host='h3',
            node_uuid=base.node_uuid('h3')))
        self.assertEqual(
            ['available', 'dirty', 'dirty'],
            [device.state for device in device_admin.list_all(self.db, 'h3')
             if device.stable_id.startswith(base.EIGHT[0].id)])

    def test_new_gpu_that_gets_vfs_is_available_and_dirty_without_them(self):
        self.assertEqual(['dirty'], self.of_first())
        hosts.store(self.db, base.scan((*with_vfs(0, 2), *base.EIGHT[1:])))
        self.assertEqual(['available', 'dirty', 'dirty'], self.of_first())
        hosts.store(self.db, base.scan(base.EIGHT))
        self.assertEqual('dirty', self.of_first()[0])

    def test_gpu_that_had_a_guest_stays_dirty_when_it_gets_vfs(self):
        self.clean_all()
        releases.release(self.db, base.uuids(self.boot(8)))
        hosts.store(self.db, base.scan((*with_vfs(0, 2), *base.EIGHT[1:])))
        self.assertEqual('dirty', self.of_first()[0])
        self.assertNotIn(base.EIGHT[0].id, [
            task.stable_id for task in cleaning.tasks(self.db, 'h1')])

    def test_gpu_of_which_guests_get_no_whole_one_is_not_dirty(self):
        def enable(*, enabled):
            group.set_type_enabled(
                self.db, 'H100', naming.PASSTHROUGH, 'h1', enabled=enabled)
        enable(enabled=False)
        self.assertEqual({'available': 8}, self.states())
        enable(enabled=True)
        self.assertEqual({'dirty': 8}, self.states())

    def test_gpu_without_variant_is_dirty_once_it_has_one(self):
        new = base.function(8, device='9999')
        hosts.store(self.db, base.scan((*base.EIGHT, new)))
        self.assertEqual({'dirty': 8, 'unmanaged': 1}, self.states())
        variant_admin.create(self.db, admin.VariantInfo(
            name='NEW', vendor='10de', device='9999'))
        self.assertEqual({'dirty': 9}, self.states())

    def test_gpu_that_another_service_had_whole_is_cleaned_before_its_vfs(
            self):
        self.clean_all()
        owned = base.replace(0, owner='Cyborg')
        hosts.store(self.db, base.scan((owned, *base.EIGHT[1:])))
        hosts.store(self.db, base.scan((*with_vfs(0, 2), *base.EIGHT[1:])))
        self.assertEqual(['dirty'] * 3, self.of_first())
        self.assertNotIn(base.EIGHT[0].id, [
            task.stable_id for task in cleaning.tasks(self.db, 'h1')])

    def test_mdev_row_is_never_new(self):
        with self.db.reader() as session:
            gpu = rows.of_host(session, 'h1').devices[0]
        row = dataclasses.replace(
            gpu, kind='mdev', stable_id=f'{base.EIGHT[0].id}/mdev0',
            cleaned_steps=None)
        self.assertTrue(capacity.is_proven(row, 'default'))

    def test_vf_with_types_that_another_service_had_is_cleaned(self):
        gpu, vf = with_vfs(0, 1)

        def store(vf):
            hosts.store(self.db, dataclasses.replace(
                base.scan((gpu, vf, *base.EIGHT[1:])),
                vgpu_capabilities={vf.id: vgpu.VGPUCapability(
                    mechanism=vgpu.VGPUMechanism.VF, types=())}))
        store(vf)
        self.clean_all()
        self.assertEqual(['available'] * 2, self.of_first())
        store(dataclasses.replace(vf, owner='Cyborg'))
        store(vf)
        self.assertEqual(['available', 'dirty'], self.of_first())

    def test_vfs_that_return_to_an_unmanaged_gpu_that_was_used(self):
        variant_admin.create(self.db, admin.VariantInfo(
            name='VF', vendor='10de', device='9998'))
        gpu, *vfs = with_vfs(0, 2)
        functions = (gpu, *(dataclasses.replace(vf, device='9998')
                            for vf in vfs), *base.EIGHT[1:])
        hosts.store(self.db, base.scan(functions))
        self.clean_all()
        hosts.store(self.db, base.scan(base.EIGHT))
        self.clean_all()
        releases.release(self.db, base.uuids(self.boot(8)))
        variant_admin.delete(self.db, 'H100')
        hosts.store(self.db, base.scan(functions))
        self.assertEqual(['dirty'] * 3, self.of_first())

    def test_gpu_that_a_backup_shows_as_new_may_have_been_used(self):
        sessions.mark_restored(self.db)
        granted = hosts.begin(self.db, 'h1', base.NODE, expected=90)
        reports.report(self.db, base.scan(
            base.EIGHT, number=1, assignments=()), hosts.origin(
                'h1', base.NODE, session=granted.number))
        hosts.store(self.db, base.scan((*with_vfs(0, 2), *base.EIGHT[1:])))
        self.assertEqual(['dirty'] * 3, self.of_first())

    def test_gpu_that_was_away_gets_no_more_mdevs(self):
        """Its guests may have run again before the first scan."""
        self.clean_all()

        def store(*foreign):
            hosts.store(self.db, base.scan(base.EIGHT[1:]))
            hosts.store(self.db, dataclasses.replace(
                base.scan((base.replace(0, used_by='mdev'), *base.EIGHT[1:])),
                vgpu_capabilities={base.EIGHT[0].id: vgpu.VGPUCapability(
                    mechanism=vgpu.VGPUMechanism.MDEV, types=(),
                    existing_vgpus=foreign)}))
        # No host cleans a GPU that has mdevs of others.
        store(base.NODE)
        self.assertEqual(['available'], self.of_first())
        store()
        self.assertEqual(['dirty'], self.of_first())

    def test_vf_says_that_it_waits_for_its_gpu(self):
        self.clean_all()
        releases.release(self.db, base.uuids(self.boot(8)))
        hosts.store(self.db, base.scan((*with_vfs(0, 1), *base.EIGHT[1:])))
        vf = next(device for device in device_admin.list_all(self.db)
                  if device.parent is not None)
        self.assertIn('remove the VFs of 0000:00:00.0', vf.reason)
        self.assertIn('remove the VFs of 0000:00:00.0', str(
            self.assertRaises(exception.Conflict, released.clean, self.db,
                              vf.uuid, 'root@control')))
