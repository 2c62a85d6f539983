# SPDX-License-Identifier: Apache-2.0
"""Tests of ``device`` and ``instance``."""

import json
import uuid

import fixtures

from gpgpu_plugin.cmd import reach
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import ledger as ledger_admin
from tests.fixtures import cleaned
from tests.unit.cmd import base
from tests.unit.conductor import base as machine


class DeviceTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.report((*machine.EIGHT, machine.function(
            8, vendor='8086', device='56c0')))

    def addresses(self, *filters):
        return [row['Address'] for row in self.json(
            'device', 'list', *filters)]

    def first(self):
        return self.json('device', 'list')[0]['UUID']

    def test_list_is_filtered_by_every_field(self):
        [assigned] = self.claim()
        everything = set(self.addresses())
        self.assertEqual(9, len(everything))
        self.assertEqual(everything, set(self.addresses('--host', 'h1')))
        self.assertEqual(
            {f'0000:0{n}:00.0' for n in range(8)},
            set(self.addresses('--variant', 'H100')))
        self.assertEqual(['0000:08:00.0'],
                         self.addresses('--state', 'unmanaged'))
        self.assertEqual([assigned.address],
                         self.addresses('--state', 'assigned'))
        self.assertEqual([assigned.address],
                         self.addresses('--used-by', base.INSTANCE))
        self.assertEqual([], self.addresses('--used-by', str(uuid.uuid4())))
        self.assertEqual([], self.addresses(
            '--used-by', base.INSTANCE, '--state', 'available'))
        self.assertEqual(everything - {'0000:08:00.0'},
                         set(self.addresses('--type', 'gpu')))
        self.assertEqual([], self.addresses('--health', 'failed'))
        self.assertEqual([], self.addresses('--faulty'))
        self.assertEqual([], self.addresses('--vgpu-type', 'H100-4C'))
        self.assertEqual([], self.addresses('--project', 'p9'))

    def test_filter_by_an_unknown_value_is_refused(self):
        self.assertIn('quarantined', self.refused(
            'device', 'list', '--state', 'broken'))
        self.assertIn('variant H9 does not exist', self.refused(
            'device', 'list', '--variant', 'H9'))
        self.assertIn('host h9 does not exist', self.refused(
            'device', 'list', '--host', 'h9'))

    def test_show_of_a_device_names_its_instance(self):
        [assigned] = self.claim()
        shown = self.json('device', 'show', assigned.device_uuid)
        self.assertEqual(
            ('assigned', base.INSTANCE, '10de', '2330', 0),
            (shown['Shown State'], shown['Used By'], shown['Vendor'],
             shown['Device'], shown['NUMA Node']))
        self.assertEqual(assigned.stable_id, shown['Stable ID'])

    def test_set_disables_and_enables_a_device(self):
        device = self.first()
        shown = self.json('device', 'set', device, '--disable')
        self.assertEqual((False, 'disabled'),
                         (shown['Enabled'], shown['Shown State']))
        shown = self.json('device', 'set', device, '--enable')
        self.assertEqual((True, 'available'),
                         (shown['Enabled'], shown['Shown State']))

    def test_set_without_exactly_one_option_is_refused(self):
        self.assertIn('--enable', self.misused('device', 'set', self.first()))
        self.assertIn('not allowed with', self.misused(
            'device', 'set', self.first(), '--enable', '--disable'))

    def test_release_of_a_quarantined_device_makes_it_dirty(self):
        [assigned] = self.claim()
        db = self.conductor.db
        releases.release(db, [assigned.uuid])
        [task] = cleaning.tasks(db, 'h1')
        cleaning.started(db, task.device_uuid, task.token, task.token)
        cleaning.finished(db, task.device_uuid, task.token,
                          task.steps, cleaned.failed('option ROM differs'))
        shown = self.json('device', 'show', assigned.device_uuid)
        self.assertEqual('quarantined', shown['Shown State'])
        self.assertIn('option ROM differs', shown['Reason'])
        result = self.manage('device', 'release', assigned.device_uuid)
        self.assertRegex(result.err, r'removed: failed since .*: cleaning '
                                     r'failed: .*option ROM differs')
        self.assertEqual('dirty', self.json(
            'device', 'show', assigned.device_uuid)['Shown State'])
        self.assertEqual(reach.actor(), ledger_admin.list_all(
            db, assigned.device_uuid)[-1].fields['actor'])

    def test_release_of_an_available_device_is_refused(self):
        device = self.first()
        self.assertIn(f'device h1 0000:00:00.0 ({device}): it cannot be '
                      f'released, since it is available',
                      self.refused('device', 'release', device))
        self.assertEqual('available', self.json(
            'device', 'show', device)['Shown State'])

    def test_csv_has_no_formula_of_a_reason(self):
        device = self.first()
        self.done('device', 'quarantine', device, '--reason', '=1+1')
        out = self.done(
            'event', 'list', '--device', device, '--long', '-f', 'csv')
        self.assertIn('"\'=1+1"', out)
        self.assertNotIn('"=1+1', out)

    def test_quarantined_device_shows_who_did_it_and_is_cleaned(self):
        device = self.first()
        shown = self.json('device', 'quarantine', device, '--reason', 'heat')
        self.assertEqual(
            ('quarantined', f'quarantined by {reach.actor()}: heat'),
            (shown['Shown State'], shown['Reason']))
        self.assertEqual('dirty', self.json(
            'device', 'clean', 'h1', '00:00.0')['Shown State'])
        events = [(row['Kind'], row['Actor']) for row in self.json(
            'event', 'list', '--device', device, '--long')]
        self.assertEqual([
            (kind, f'operator {reach.actor()}')
            for kind in ('clean', 'quarantine')], events[:2])

    def test_quarantine_of_an_assigned_device_says_when(self):
        [assigned] = self.claim()
        result = self.manage('device', 'quarantine', assigned.device_uuid,
                             '--reason', 'heat')
        self.assertEqual(0, result.code)
        self.assertIn(f'instance {base.INSTANCE} keeps the device',
                      result.err)
        self.assertIn(f'instance {base.INSTANCE} has it', self.refused(
            'device', 'clean', assigned.device_uuid))
        self.assertIn('--reason', self.misused(
            'device', 'quarantine', assigned.device_uuid))

    def test_retired_device_is_listed_only_with_all(self):
        device = self.first()
        shown = self.json('device', 'retire', 'h1', '00:00.0',
                          '--reason', 'old')
        self.assertEqual(('retired', device), (
            shown['Shown State'], shown['UUID']))
        self.assertRegex(shown['Reason'], '^retired by .*: old$')
        self.assertNotIn('0000:00:00.0', self.addresses())
        self.assertIn('0000:00:00.0', self.addresses('--all'))
        self.assertEqual(['0000:00:00.0'],
                         self.addresses('--state', 'retired'))
        # Its place names it, until another card has the place.
        self.assertEqual('dirty', json.loads(self.manage(
            'device', 'release', 'h1', '00:00.0', '-f', 'json',
        ).out)['Shown State'])

    def test_unknown_device_is_not_found(self):
        for arguments in (('show', 'x'), ('set', 'x', '--enable'),
                          ('release', 'x'), ('clean', 'x'),
                          ('quarantine', 'x', '--reason', 'y'),
                          ('retire', 'x'), ('replace', 'x')):
            self.assertEqual('gpgpu-manage: device x does not exist; see '
                             '"gpgpu-manage device list --all"\n',
                             self.refused('device', *arguments))


class InstanceTest(base.CommandTestCase):

    def test_show_of_an_instance_lists_its_assignments(self):
        assignments = self.claim(2)
        rows = self.json('instance', 'show', base.INSTANCE)
        self.assertEqual(
            sorted((assigned.uuid, assigned.device_uuid, assigned.address)
                   for assigned in assignments),
            sorted((row['UUID'], row['Device UUID'], row['Address'])
                   for row in rows))
        self.assertEqual(
            {('h1', 'instance', None, 'H100', 'passthrough', 'assigned')}, {
                (row['Host'], row['Role'], row['Migration UUID'],
                 row['Variant'], row['vGPU Type'], row['State'])
                for row in rows})

    def test_instance_is_found_by_another_form_of_its_uuid(self):
        self.claim()
        self.assertEqual(1, len(self.json(
            'instance', 'show', base.INSTANCE.replace('-', '').upper())))

    def test_instance_without_devices_is_an_empty_list(self):
        unknown = str(uuid.uuid4())
        result = self.manage('instance', 'show', unknown, '-f', 'json')
        self.assertEqual(
            (0, '[]', f'gpgpu-manage: instance {unknown} has no device\n'),
            (result.code, result.out.strip(), result.err))

    def test_name_of_an_instance_without_a_cloud_is_refused(self):
        self.useFixture(fixtures.EnvironmentVariable('OS_CLOUD'))
        self.useFixture(fixtures.EnvironmentVariable(
            'OS_CLIENT_CONFIG_FILE', '/nonexistent'))
        message = self.refused('instance', 'show', 'my-server')
        for words in ('clouds.yaml', '--os-cloud', 'the UUID of the server'):
            self.assertIn(words, message)


class NewDeviceTest(base.CommandTestCase):
    """Devices that no host has cleaned yet."""

    cleaned_before = False

    def test_accepted_devices_are_offered(self):
        rows = self.json('device', 'accept', 'h1', '00:00.0', '0000:03:00.0',
                         '--reason', 'burned in')
        self.assertEqual(
            [('0000:00:00.0', 'available'), ('0000:03:00.0', 'available')],
            [(row['Address'], row['Shown State']) for row in rows])
        self.assertEqual(
            [('accept', 'burned in', f'operator {reach.actor()}')] * 2,
            [(row['Kind'], row['Detail'], row['Actor']) for row in self.json(
                'event', 'list', '--kind', 'accept', '--long')])
        [record] = ledger_admin.list_all(
            self.conductor.db, rows[0]['UUID'])
        self.assertEqual(reach.actor(), record.fields['actor'])

    def test_reason_is_required(self):
        self.assertIn('--reason', self.misused(
            'device', 'accept', 'h1', '00:00.0'))

    def test_device_that_is_not_new_is_refused(self):
        self.done('device', 'accept', 'h1', '00:00.0', '--reason', 'x')
        self.assertIn('it cannot be accepted, since it is available',
                      self.refused('device', 'accept', 'h1', '01:00.0',
                                   '00:00.0', '--reason', 'x'))

    def test_replaced_device_gives_its_place_to_the_next_card(self):
        old = self.json('device', 'show', 'h1', '00:00.0')['UUID']
        result = self.manage('device', 'replace', 'h1', '00:00.0')
        self.assertEqual(0, result.code)
        self.assertIn('the next card that h1 reports at 0000:00:00.0',
                      result.err)
        self.report((machine.replace(0, dsn='other'), *machine.EIGHT[1:]))
        shown = self.json('device', 'show', 'h1', '00:00.0')
        self.assertEqual(('dirty', old), (
            shown['Shown State'], shown['Replaces']))
        self.assertEqual(shown['UUID'], self.json(
            'device', 'show', old)['Replaced By'])
