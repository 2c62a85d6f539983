#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Tests of .ci/run's own functions."""

import re
import subprocess

from oslotest import base

from tests.fixtures import patience
from tests.unit import test_meta

# As tox does, it ends what it has started, and dies before that does.
_PARENT = """
trap 'kill $(jobs -p); exit' TERM
bash -c 'trap "sleep 0.2; exit" TERM; sleep 1000 & echo $!; wait' &
wait
"""


def _functions(*names):
    """Return the text of functions of .ci/run."""
    text = (test_meta.TOP / '.ci/run').read_text()
    return [re.search(rf'^{name}\(\) \{{.*?^\}}$', text, re.M | re.S)[0]
            for name in names]


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


def _lives(pid):
    """Return whether a process exists and is no zombie."""
    found = subprocess.run(['ps', '-o', 'stat=', '-p', str(pid)], text=True,
                           stdout=subprocess.PIPE, check=False).stdout
    return bool(found.strip()) and not found.startswith('Z')
