# SPDX-License-Identifier: Apache-2.0
"""Tests of gpgpu-status: its exit codes, and what checks share."""

import contextlib
import io
import json

import fixtures
from oslo_upgradecheck import upgradecheck

from gpgpu_plugin import version
from gpgpu_plugin.cmd import status
from gpgpu_plugin.cmd import upgrade
from gpgpu_plugin.db import migration
from tests.fixtures import database
from tests.unit import test_meta
from tests.unit.cmd import base

NAMES = [name for name, _ in status.UpgradeChecks._upgrade_checks]


class StatusTest(base.ConfiguredTestCase):

    def setUp(self):
        super().setUp()
        self.url = database.new_sqlite(self.folder)
        self.path = self.write_conf(self.url)

    def write_conf(self, url):
        return self.write(
            'x.conf', '[database]', f'connection = {url}', '[gpgpu]',
            'transport_url = fake:/', 'sign_calls = false')

    def run_main(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = status.main(arguments)
        return base.Result(code=code, out=out.getvalue(), err=err.getvalue())

    def checks(self, *arguments):
        """Return the exit code, and code and text of each check."""
        done = self.run_main(
            '--config-file', self.path, *arguments, 'upgrade', 'check',
            '--json')
        self.assertEqual('', done.err)
        return done.code, {
            check['check']: (check['result'], check['details'])
            for check in json.loads(done.out)['checks']}

    def pretend(self, **results):
        """Let all checks succeed but some."""
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.cmd.status.UpgradeChecks._upgrade_checks', tuple(
                (name, lambda checks, name=name: results.get(
                    name, upgrade.success('fine')))
                for name in ('one', 'two', 'three'))))

    def test_version_is_that_of_the_plugin(self):
        done = self.run_main('--version')
        self.assertEqual((0, f'gpgpu-status {version.VERSION}\n', ''),
                         (done.code, done.out, done.err))

    def test_exit_code_is_that_of_the_worst_check(self):
        self.pretend()
        self.assertEqual(0, self.checks()[0])
        self.pretend(two=upgrade.warning('odd'))
        self.assertEqual(1, self.checks()[0])
        self.pretend(one=upgrade.failure('bad'), two=upgrade.warning('odd'))
        self.assertEqual(2, self.checks()[0])

    def test_table_shows_every_check(self):
        done = self.run_main(
            '--config-file', self.path, 'upgrade', 'check')
        for name in NAMES:
            self.assertIn(f'Check: {name} ', done.out)

    def test_documentation_has_the_checks(self):
        page = test_meta.doc('admin/maintenance.rst')
        for name in NAMES:
            self.assertIn(f'   * - {name}\n', page)

    def test_checks_need_neither_nova_nor_a_conductor(self):
        code, found = self.checks(
            '--nova-config-file', '/nowhere/nova.conf')
        self.assertEqual(2, code)
        self.assertEqual(NAMES, list(found))
        self.assertEqual(
            (upgradecheck.Code.SUCCESS,
             f'revision {migration.revisions()[-1]}'),
            found['Database schema'])
        code, text = found['Conductors']
        self.assertEqual(upgradecheck.Code.FAILURE, code)
        self.assertIn('transport "fake" reaches no other process', text)
        for name in ('Filters of nova-scheduler', 'Driver of nova-compute',
                     '[gpgpu] of nova.conf', 'Notifications of Nova',
                     'Devices that Nova assigns', 'Placement'):
            code, text = found[name]
            self.assertEqual(upgradecheck.Code.WARNING, code, name)
            self.assertIn('not checked', text)
            self.assertIn('--nova-config-file', text)

    def test_other_checks_refer_to_that_of_the_schema(self):
        self.write_conf(f'sqlite:///{self.folder}/empty.sqlite')
        _, found = self.checks()
        code, text = found['Database schema']
        self.assertEqual(upgradecheck.Code.FAILURE, code)
        self.assertIn('the SQLite file does not exist', text)
        for name in ('Compute hosts', 'Keys on this machine',
                     'Keys of hosts and schedulers'):
            self.assertEqual(
                (upgradecheck.Code.WARNING,
                 'not checked: see "Database schema"'), found[name])

    def test_database_that_does_not_answer_fails_at_once(self):
        self.write_conf('postgresql+psycopg2://x:secret@127.0.0.1:1/gpgpu')
        _, found = self.checks()
        code, text = found['Database schema']
        self.assertEqual(upgradecheck.Code.FAILURE, code)
        self.assertIn('x:***@127.0.0.1:1/gpgpu cannot be used: ', text)
        self.assertNotIn('secret', text)

    def test_default_files_are_those_of_the_services(self):
        self.pretend()
        self.write('CONFIG_FILE', '[gpgpu]', 'rpc_timeout = 0')
        done = self.run_main('upgrade', 'check')
        self.assertEqual(0, done.code, done.err)
