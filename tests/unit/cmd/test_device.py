# SPDX-License-Identifier: Apache-2.0
"""Tests of ``device``."""

import json
import uuid

from gpgpu_plugin.cmd import reach
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import history
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

    def quarantine(self, device, reason):
        return self.json('hold', 'add', device, '--kind', 'quarantined',
                         '--reason', reason)

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
        self.assertIn('quarantined', self.misused(
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

    def test_hold_disables_a_device_until_it_is_removed(self):
        device = self.first()
        shown = self.json('hold', 'add', device, '--kind', 'disabled')
        self.assertEqual((False, 'disabled'),
                         (shown['Enabled'], shown['Shown State']))
        shown = self.json('hold', 'remove', device, '--kind', 'disabled')
        self.assertEqual((True, 'available'),
                         (shown['Enabled'], shown['Shown State']))

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
        self.assertEqual(reach.actor(), history.list_cleanings(
            db, assigned.device_uuid)[-1].fields['actor'])

    def test_release_of_an_available_device_has_it_cleaned(self):
        device = self.first()
        self.assertEqual('dirty', self.json(
            'device', 'release', device)['Shown State'])
        [event] = self.json('event', 'list', '--device', device, '--kind',
                            'clean')
        self.assertEqual(('clean', f'operator {reach.actor()}'),
                         (event['Kind'], event['Actor']))

    def test_release_of_an_assigned_device_is_refused(self):
        [assigned] = self.claim()
        self.assertIn(f'instance {base.INSTANCE} has it', self.refused(
            'device', 'release', assigned.device_uuid))

    def test_csv_has_no_formula_of_a_reason(self):
        device = self.first()
        self.quarantine(device, '=1+1')
        out = self.done(
            'event', 'list', '--device', device, '--long', '-f', 'csv')
        self.assertIn('"\'=1+1"', out)
        self.assertNotIn('"=1+1', out)

    def test_quarantined_device_shows_who_did_it_and_is_cleaned(self):
        device = self.first()
        shown = self.quarantine(device, 'heat')
        self.assertEqual(
            ('quarantined', f'quarantined by {reach.actor()}: heat'),
            (shown['Shown State'], shown['Reason']))
        released = self.manage('device', 'release', 'h1', '00:00.0')
        self.assertIn('removed: quarantined since', released.err)
        self.assertEqual('dirty', self.json(
            'device', 'show', device)['Shown State'])
        events = [(row['Kind'], row['Actor']) for row in self.json(
            'event', 'list', '--device', device, '--long')]
        self.assertEqual([
            (kind, f'operator {reach.actor()}')
            for kind in ('operator_release', 'quarantine')], events[:2])

    def test_quarantine_of_an_assigned_device_says_when(self):
        [assigned] = self.claim()
        result = self.manage('hold', 'add', assigned.device_uuid, '--kind',
                             'quarantined', '--reason', 'heat')
        self.assertEqual(0, result.code)
        self.assertIn(f'instance {base.INSTANCE} keeps the device',
                      result.err)
        # Which a release takes back.
        self.assertEqual('assigned', json.loads(self.manage(
            'device', 'release', assigned.device_uuid, '-f', 'json',
        ).out)['Shown State'])

    def test_retired_device_is_listed_only_with_all(self):
        device = self.first()
        shown = self.json('hold', 'add', 'h1', '00:00.0', '--kind', 'retired',
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
        for verb in ('show', 'release', 'replace'):
            self.assertEqual('gpgpu-manage: device x does not exist; see '
                             '"gpgpu-manage device list --all"\n',
                             self.refused('device', verb, 'x'))


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
        [record] = history.list_cleanings(
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
