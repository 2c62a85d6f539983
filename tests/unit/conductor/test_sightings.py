# SPDX-License-Identifier: Apache-2.0
"""Tests of cards that are, or were, in another place."""

import dataclasses

import sqlalchemy as sa

from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import sighting as sighting_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.domain import pci
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.fixtures import released
from tests.unit.conductor import base
from tests.unit.db import base as db_base

OPERATOR = 'root@control'


class SightingCase(base.ConductorTestCase):
    """A GPU on h1, which h1 has cleaned."""

    functions = (base.function(0),)
    new_are_clean = False

    def boot_host(self, host, functions=functions, boot='1'):
        """Switch a host on, and have it report."""
        with self.db.reader() as session:
            expected = session.scalar(sa.select(tables.HOSTS.c.session).where(
                tables.HOSTS.c.name == host, tables.HOSTS.c.deleted == 0)) or 0
        hosts.begin(
            self.db, host, base.node_uuid(host), expected=expected,
            start_uuid=base.node_uuid(f'{host}{boot}'),
            identity=host_rules.MachineIdentity(boot_id=boot, machine_id=host))
        reports.report(self.db, base.scan(
            functions, host=host, node_uuid=base.node_uuid(host), number=1,
            assignments=()))

    def gpu(self, host='h1'):
        return next(device for device in device_admin.list_all(
            self.db, host, include_retired=True) if device.parent is None)

    def clean(self, host):
        for task in cleaning.tasks(self.db, host):
            cleaning.started(
                self.db, task.device_uuid, task.token, task.token)
            cleaning.finished(self.db, task.device_uuid, task.token,
                              task.steps, cleaned.results(task.steps))

    def states(self):
        return [self.gpu(host).state for host in ('h1', 'h2')]

    def details(self):
        with self.db.reader() as session:
            return session.scalars(sa.select(event_db.TABLE.c.detail).where(
                event_db.TABLE.c.kind == 'distrust',
                event_db.TABLE.c.host == 'h1',
            ).order_by(event_db.TABLE.c.id)).all()


class TravelTest(SightingCase):

    def test_gpu_is_cleaned_on_the_host_to_which_it_came(self):
        self.boot_host('h2')
        self.assertEqual(['available', 'dirty'], self.states())

    def test_gpu_that_was_elsewhere_is_cleaned_when_it_is_back(self):
        self.boot_host('h2')
        self.clean('h2')
        self.boot_host('h1', boot='2')
        self.assertEqual(['dirty', 'available'], self.states())
        self.assertEqual(
            ['another host showed the number of its card'], self.details())
        # What was elsewhere since is cleaned there, too.
        self.clean('h1')
        self.boot_host('h2', boot='2')
        self.assertEqual(['available', 'dirty'], self.states())

    def test_gpu_is_known_elsewhere_by_its_serial_number_alone(self):
        card = [base.replace(0, dsn=None, serial='S')]
        self.boot_host('h2', card)
        self.clean('h2')
        self.boot_host('h3', card)
        self.boot_host('h2', card, boot='2')
        self.assertEqual('dirty', self.gpu('h2').state)

    def test_same_report_after_a_boot_is_news(self):
        # Nothing is new in the first one, so that its digest is kept.
        self.boot_host('h1')
        self.boot_host('h2')
        self.boot_host('h1', boot='2')
        self.assertEqual('dirty', self.gpu().state)

    def test_gpu_that_stayed_is_not_cleaned_for_the_number_of_another(self):
        self.boot_host('h2')
        retirement.retire(self.db, self.gpu('h2').uuid, None, 'op')
        hosts.store(self.db, base.scan(
            [base.replace(0, driver='nvidia')], number=2))
        self.assertEqual(['available', 'retired'], self.states())
        # The other one was shown while h1 was on.
        self.boot_host('h1', [base.replace(0, driver='nvidia')], boot='2')
        self.assertEqual('available', self.gpu().state)

    def test_reboot_alone_dirties_nothing(self):
        self.boot_host('h1', boot='2')
        self.assertEqual('available', self.gpu().state)

    def test_gpu_that_was_missing_is_cleaned_with_its_vfs(self):
        vf = base.function(0, id=f'{base.EIGHT[0].id}/vf0', dsn=None,
                           address='0000:00:00.1', pf=base.EIGHT[0].id,
                           vf_index=0)
        gpu = base.replace(0, used_by='vf', sriov_numvfs=1, sriov_totalvfs=1)
        hosts.store(self.db, base.scan((gpu, vf)))
        self.clean('h1')
        self.assertEqual({'available'}, self.all_states())
        hosts.store(self.db, base.scan(()))
        hosts.store(self.db, base.scan((gpu, vf)))
        # Nobody knows who had the whole GPU: its VFs must be removed first.
        self.assertEqual({'dirty'}, self.all_states())
        self.assertEqual((), cleaning.tasks(self.db, 'h1'))
        self.assertIn('remove the VFs of 0000:00:00.0 on host h1',
                      self.gpu().reason)
        hosts.store(self.db, base.scan(self.functions))
        self.clean('h1')
        hosts.store(self.db, base.scan((gpu, vf)))
        self.clean('h1')
        self.assertEqual({'available'}, self.all_states())

    def all_states(self):
        return {device.state for device in device_admin.list_all(self.db)}

    def test_number_of_too_many_hosts_identifies_none(self):
        with self.db.writer() as session:
            sighting_db.store(session, (), [
                sighting_db.Sighting(0, device.uuid, None, '0', 0, None)
                for device in self.devices_of_hosts(
                    session, sighting_db.MAX_HOSTS + 1)])
        hosts.store(self.db, base.scan([base.replace(0, serial='0')]))
        self.assertEqual('available', self.gpu().state)

    def devices_of_hosts(self, session, count):
        for number in range(count):
            host = db_base.host(f'x{number}')
            host.insert(session)
            device = db_base.device(f'd{number}', host_id=host.id)
            device.insert(session)
            yield device

    def test_gpu_without_a_number_is_cleaned_in_each_new_place(self):
        nameless = base.replace(0, dsn=None)
        self.boot_host('h2', [nameless])
        self.boot_host('h3', [nameless])
        self.assertEqual('dirty', self.gpu('h2').state)
        self.assertEqual('dirty', self.gpu('h3').state)


class OperatorTest(SightingCase):
    """Quarantine and retirement by an operator follow the number."""

    def test_retired_card_is_retired_elsewhere(self):
        retirement.retire(self.db, self.gpu().uuid, 'fell off the bus', 'op')
        self.boot_host('h2')
        self.assertEqual(['retired', 'retired'], self.states())
        self.assertIn('it was retired at 0000:00:00.0 of h1: fell off the bus',
                      self.gpu('h2').reason)
        # Its release in the new place is not undone when the old one returns.
        released.release(self.db, self.gpu('h2').uuid, OPERATOR)
        self.boot_host('h2', boot='2')
        self.assertEqual('dirty', self.gpu('h2').state)

    def test_quarantine_by_an_operator_follows(self):
        withdrawal.quarantine(self.db, self.gpu().uuid, 'loud', OPERATOR)
        self.boot_host('h2')
        self.assertEqual(['quarantined'] * 2, self.states())
        self.assertIn('loud', self.gpu('h2').reason)

    def test_failed_cleaning_does_not_follow(self):
        released.clean(self.db, self.gpu().uuid, OPERATOR)
        self.clean_all(passed=False)
        self.boot_host('h2')
        self.assertEqual(['quarantined', 'dirty'], self.states())

    def test_retired_card_that_comes_while_the_host_runs(self):
        card = base.replace(0, dsn='77')
        self.boot_host('h2', [card])
        retirement.retire(self.db, self.gpu('h2').uuid, 'bad', 'op')
        hosts.store(self.db, base.scan([card]))
        self.assertEqual('retired', self.gpu().state)

    def test_disabled_card_is_not_disabled_elsewhere(self):
        device_admin.set_(self.db, self.gpu().uuid, 'op', enabled=False)
        self.boot_host('h2')
        self.assertTrue(self.gpu('h2').enabled)


class BoardTest(SightingCase):
    """Two GPUs on one board, which has one number."""

    functions = (base.replace(0, dsn=None, serial='B1'),
                 base.replace(1, dsn=None, serial='B1'))

    def test_quarantine_does_not_follow_to_the_other_gpu(self):
        first, second = device_admin.list_all(self.db)
        withdrawal.quarantine(self.db, first.uuid, 'loud', OPERATOR)
        hosts.store(self.db, base.scan(self.functions[:1]))
        hosts.store(self.db, base.scan(self.functions))
        self.assertEqual(
            'dirty', device_admin.show(self.db, second.uuid).state)


class DeletedHostTest(SightingCase):

    def test_card_was_on_a_host_that_was_deleted_meanwhile(self):
        self.boot_host('h2')
        host_admin.delete(self.db, 'h2')
        self.boot_host('h1', boot='2')
        self.assertEqual('dirty', self.gpu().state)

    def test_sightings_of_no_other_host_are_deleted(self):
        host_admin.delete(self.db, 'h1')
        with self.db.reader() as session:
            self.assertEqual([], session.execute(
                sa.select(sighting_db.TABLE)).all())


class NumbersTest(base.ConductorTestCase):

    def test_case_of_letters_does_not_count(self):
        self.assertEqual(('48-b0', 'ABC1'), sighting_db.numbers(
            pci.Identity(dsn='48-b0', serial='aBc1')))

    def test_long_numbers_are_cut(self):
        self.assertEqual((None, 'X' * 255), sighting_db.numbers(
            dataclasses.replace(pci.Identity(), serial='x' * 300)))
