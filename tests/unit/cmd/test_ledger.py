# SPDX-License-Identifier: Apache-2.0
"""Tests of ``device cleanings``."""

import json
import pathlib
import re
import subprocess
import sys
import textwrap

import fixtures
import sqlalchemy as sa

from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import ledger as ledger_db
from gpgpu_plugin.domain import ledger
from tests.fixtures import cleaned
from tests.unit import test_meta
from tests.unit.cmd import base


def script():
    """Return the script of the docs that verifies an export."""
    [found] = re.findall(
        r'\.\. code-block:: python\n\n((?:    .*\n|\n)+)',
        test_meta.doc('admin/ledger.rst'))
    return textwrap.dedent(found)


class HistoryCase(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.db = self.conductor.db
        [assigned] = self.claim()
        self.device, self.address = assigned.device_uuid, assigned.address
        releases.release(self.db, [assigned.uuid])
        self.clean(cleaned.failed('looked at'))
        self.manage('device', 'release', self.device)
        self.clean()

    def clean(self, results=None):
        [task] = cleaning.tasks(self.db, 'h1')
        cleaning.started(self.db, task.device_uuid, task.token, task.token)
        cleaning.finished(self.db, task.device_uuid, task.token, task.steps,
                          results or cleaned.results(task.steps))

    def write(self, statement):
        with self.db.writer() as session:
            session.execute(statement)

    def forge(self):
        """Let the cleaning that failed have passed."""
        with self.db.reader() as session:
            content = session.scalar(
                sa.select(ledger_db.TABLE.c.content)
                .where(ledger_db.TABLE.c.number == 1))
        self.write(sa.update(ledger_db.TABLE).where(
            ledger_db.TABLE.c.number == 1).values(content=content.replace(
                '"failed"', '"passed"')))

    def history(self, *options):
        return self.manage('device', 'cleanings', self.device, *options)

    def exported(self, *options):
        return json.loads(self.done('device', 'cleanings', self.device,
                                    *options))


class HistoryTest(HistoryCase):

    def test_table_has_a_row_for_each_verdict(self):
        rows = self.json('device', 'cleanings', self.device, '--long')
        hashes = [row['hash'] for row in self.exported('--json')]
        self.assertEqual([
            (1, 'failed', 'default', ['reset failed'], base.INSTANCE,
             'reset failed: looked at', hashes[0][:12]),
            (2, 'released', 'default', [], base.INSTANCE,
             'cleaning failed: reset failed: looked at', hashes[1][:12]),
            (3, 'passed', 'default',
             ['reset passed', 'settings passed', 'canary passed'],
             base.INSTANCE, None, hashes[2][:12])],
            [(row['Number'], row['Verdict'], row['Policy'], row['Steps'],
              row['Instance UUID'], row['Reason'], row['Hash'])
             for row in rows])
        self.assertRegex(rows[0]['Finished At'], r'^\d{4}-.*Z$')
        self.assertIn('reset passed, settings passed', self.history().out)

    def test_json_has_all_evidence(self):
        found = self.exported('--json')
        self.assertEqual(['reset', 'settings', 'canary'], [
            result['step'] for result in found[2]['results']])
        self.assertEqual((found[1]['hash'], self.address, 'h1'), (
            found[2]['previous_hash'], found[2]['address'],
            found[2]['host']))

    def test_pages(self):
        rows = self.json('device', 'cleanings', self.device, '--limit', '1',
                         '--marker', '1')
        self.assertEqual([2], [row['Number'] for row in rows])
        self.assertIn("'x' is not valid", self.refused(
            'device', 'cleanings', self.device, '--marker', 'x'))

    def test_part_of_a_history_is_not_verified(self):
        for options in (('--verify', '--limit', '1'),
                        ('--export', 'sec21-05', '--marker', '1')):
            self.assertIn('need the whole history', self.refused(
                'device', 'cleanings', self.device, *options))

    def test_verified_history_names_its_last_hash(self):
        result = self.history('--json', '--verify')
        last = json.loads(result.out)[-1]['hash']
        self.assertEqual(
            (0, f'gpgpu-manage: 3 records verified; hash of '
                f'the last one: {last}\n'), (result.code, result.err))

    def test_device_that_was_never_cleaned(self):
        other = next(row['UUID'] for row in self.json('device', 'list')
                     if row['UUID'] != self.device)
        result = self.manage(
            'device', 'cleanings', other, '--json', '--verify')
        self.assertEqual((0, '[]\n'), (result.code, result.out))
        self.assertIn('hash of the last one: none', result.err)

    def test_history_of_a_deleted_device_is_verified(self):
        host_admin.delete(self.db, 'h1')
        result = self.history('--verify')
        self.assertEqual(0, result.code, result.err)

    def test_first_wrong_record_is_named_and_the_command_fails(self):
        self.forge()
        result = self.history('--verify')
        self.assertEqual(1, result.code)
        self.assertRegex(result.err, f'history of device {self.device}.*: '
                                     f'record 1: its content does not have')
        self.assertIn('released', result.out)
        # Without --verify nobody looks.
        self.assertEqual(0, self.history().code)

    def test_content_that_is_no_record_is_named_and_the_command_fails(self):
        for text in ('x', '[]', '{}', '{"results": [1]}'):
            self.write(sa.update(ledger_db.TABLE).where(
                ledger_db.TABLE.c.number == 1).values(
                    content=text, hash=ledger.digest(text)))
            for options in ((), ('--json',)):
                result = self.history('--verify', *options)
                self.assertEqual(1, result.code)
                self.assertIn('record 1: its content is not that of a record',
                              result.err)

    def test_record_beyond_the_end_is_named_and_the_command_fails(self):
        self.write(sa.update(ledger_db.CHAINS).values(number=2))
        self.write(sa.update(ledger_db.CHAINS).values(
            hash=self.exported('--json')[1]['hash']))
        result = self.history('--verify')
        self.assertEqual(1, result.code)
        self.assertIn('record 3: it was forged', result.err)

    def test_record_that_is_missing_is_named_and_the_command_fails(self):
        for number in (3, 2):
            self.write(sa.delete(ledger_db.TABLE).where(
                ledger_db.TABLE.c.number == number))
            result = self.history('--verify')
            self.assertEqual(1, result.code)
            self.assertIn(f'record {number}: it is missing', result.err)

    def test_unknown_device_is_not_found(self):
        self.assertEqual('gpgpu-manage: device x does not exist; see '
                         '"gpgpu-manage device list --all"\n',
                         self.refused('device', 'cleanings', 'x'))


class ExportTest(HistoryCase):

    def machine(self):
        [found] = self.exported('--export', 'sec21-05')['machines']
        return found

    def test_device_is_a_machine_of_the_check(self):
        found = self.machine()
        self.assertEqual(
            (self.device, 'available', True, True, True, False, 'H100',
             'h1', 3),
            (found['machine_id'], found['status'], found['available'],
             found['served_tenant'], found['sanitized'],
             found['stale_tenant_binding'], found['product_name'],
             found['host'], found['records']))
        self.assertEqual(
            ['in_use', 'sanitizing', 'error', 'maintenance', 'sanitizing',
             'available'], found['transitions'])

    def test_deleted_device(self):
        host_admin.delete(self.db, 'h1')
        self.assertEqual('decommissioned', self.machine()['status'])

    def test_forged_history_is_no_success(self):
        self.forge()
        found = self.exported('--export', 'sec21-05')
        self.assertEqual(False, found['success'])
        self.assertIn('record 1', found['error'])


class ScriptTest(HistoryCase):
    """Tests of the script that the docs have."""

    def verify(self, *exports):
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        paths = []
        for number, export in enumerate(exports):
            paths.append(folder / f'{number}.json')
            paths[-1].write_text(json.dumps(export))
        return subprocess.run(
            [sys.executable, '-I', '-c', script(), *paths], check=False,
            capture_output=True, text=True)

    def test_export_is_verified_without_the_plugin(self):
        self.assertNotIn('gpgpu', script())
        found = self.exported('--json')
        result = self.verify(found)
        self.assertEqual((0, f'3 records, last hash {found[-1]["hash"]}\n'),
                         (result.returncode, result.stdout), result.stderr)

    def test_any_change_is_found(self):
        found = self.exported('--json')
        for number, name, value in (
                (0, 'verdict', 'passed'), (1, 'actor', 'x'),
                (2, 'results', []), (1, 'previous_hash', ''),
                (2, 'hash', 'x')):
            changed = [dict(record) for record in found]
            changed[number][name] = value
            self.assertIn(f'record {number + 1} ', self.verify(
                changed).stderr)
        self.assertIn('record 2 ', self.verify(
            [found[0], found[2]]).stderr)

    def test_content_that_is_no_record_is_found(self):
        for record in ({}, {'content': 'x'}):
            record['hash'] = ledger.digest(ledger.content(record))
            self.assertIn('record 1 ', self.verify([record]).stderr)

    def test_older_export_shows_what_was_removed_or_written_anew(self):
        found = self.exported('--json')
        self.assertEqual(0, self.verify(found, found[:2]).returncode)
        self.assertIn('record 3 ', self.verify(found[:2], found).stderr)
        other = [{**record, 'hash': 'x'} for record in found]
        self.assertIn('record 1 ', self.verify(found, other).stderr)
