# SPDX-License-Identifier: Apache-2.0
"""Tests of .ci/run's own functions."""

import pathlib
import re
import subprocess

import fixtures
from oslotest import base

from tests.fixtures import patience
from tests.unit import test_meta

_TEXT = (test_meta.TOP / '.ci/run').read_text()

# As tox does, it ends what it has started, and dies before that does.
_PARENT = """
trap 'kill $(jobs -p); exit' TERM
bash -c 'trap "sleep 0.2; exit" TERM; sleep 1000 & echo $!; wait' &
wait
"""


def _functions(*names):
    """Return the text of functions of .ci/run."""
    return [re.search(rf'^{name}\(\) \{{.*?^\}}$', _TEXT, re.M | re.S)[0]
            for name in names]


def _table():
    """Return the turns of the heavy stages."""
    return re.search(r'^turns=.*?^\)$', _TEXT, re.M | re.S)[0]


class EndTest(base.BaseTestCase):

    def test_end_leaves_no_descendant(self):
        script = '\n'.join((
            'set -euo pipefail', *_functions('end', 'descendants'),
            'bash -c "$1" &',
            'read -r _', 'end $!', 'wait $! || true'))
        process = subprocess.Popen(
            ['bash', '-c', script, 'run', _PARENT], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        last = int(process.stdout.readline())
        process.communicate('end\n', timeout=patience.LONG)
        self.assertTrue(patience.wait_until(lambda: not _lives(last)))


class SecondsLeftTest(base.BaseTestCase):

    def _seconds_left(self, seconds):
        script = '\n'.join((
            'set -euo pipefail', *_functions('seconds_left'), 'limit=5000',
            f'SECONDS={seconds}', 'seconds_left'))
        return int(subprocess.run(
            ['bash', '-c', script], text=True, stdout=subprocess.PIPE,
            check=True).stdout)

    def test_stage_takes_an_hour_at_most(self):
        self.assertEqual(3600, self._seconds_left(0))

    def test_stage_ends_at_the_limit_of_all(self):
        # The clock may tick meanwhile.
        self.assertIn(self._seconds_left(4000), range(900, 1001))

    def test_stage_after_the_limit_ends_at_once(self):
        self.assertEqual(1, self._seconds_left(5001))


class DueTest(base.BaseTestCase):
    """Which heavy stages a commit runs."""

    def setUp(self):
        super().setUp()
        self.clone = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self._run('git init -q')
        self.commits = 0

    def _run(self, script):
        return subprocess.run(
            ['bash', '-c', 'set -euo pipefail\n' + script], text=True,
            cwd=self.clone, stdout=subprocess.PIPE, check=True).stdout

    def commit(self):
        self.commits += 1
        self._run('git -c user.name=n -c user.email=e commit --allow-empty '
                  '-qm "component: change"')

    def due(self, all_=''):
        """Return the heavy stages that run, with the reason of each."""
        printed = self._run('\n'.join((
            f'all={all_}', _table(), *_functions('due', 'cause'),
            'for name in "${!turn[@]}" pep8; do due "$name" || true; done')))
        return dict(re.findall(r'^=== (\S+) \(of turn \d\): (runs.*)$',
                               printed, re.M))

    def test_commits_in_a_row_run_each_stage_once(self):
        found = []
        for number in range(1, 9):
            self.commit()
            due = self.due()
            self.assertEqual(
                {f'runs, as commit {number} has turn {number % 8}'},
                set(due.values()))
            found += due
        self.assertEqual(sorted(self.due(all_='yes')), sorted(found))

    def test_all_run_where_the_history_is_missing(self):
        self.commit()
        everything = set(self.due(all_='yes'))
        (self.clone / '.git/shallow').write_text(
            self._run('git rev-parse HEAD'))
        self.assertEqual(everything, set(self.due()))
        self._run('rm -rf .git')
        self.assertEqual(everything, set(self.due()))


class SlowTest(base.BaseTestCase):

    def test_slow_modules_exist(self):
        folder = test_meta.TOP / 'tests/functional'
        modules = {rf'functional\.{path.stem}\.'
                   for path in folder.glob('test_*.py')}
        lines = (folder / 'slow.txt').read_text().splitlines()
        slow = {line for line in lines if line[0] != '#'}
        self.assertEqual(set(), slow - modules)

    def test_each_slow_module_is_of_one_stage(self):
        lines = (test_meta.TOP / 'tests/functional/slow.txt').read_text()
        stages = re.findall(r'\[slow-(\w-\w)\]=', _table())
        self.assertEqual(sorted(re.findall(r'test_(\w)', lines)), sorted(
            letter for stage in stages
            for letter in re.findall(rf'test_([{stage}])', lines)))


def _lives(pid):
    """Return whether a process exists and is no zombie."""
    found = subprocess.run(['ps', '-o', 'stat=', '-p', str(pid)], text=True,
                           stdout=subprocess.PIPE, check=False).stdout
    return bool(found.strip()) and not found.startswith('Z')
