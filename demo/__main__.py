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
"""``python -m demo``: tell the story; exit 0 only if every step held."""

from __future__ import annotations

import contextlib
import logging
import sys
import tempfile
import time
import unittest
import warnings

from demo import story
from demo import teller
from tests.fixtures import memory


def _log_to_file() -> str:
    """Send everybody's logging and warnings to a file; its path."""
    path = tempfile.mkstemp(prefix='gpgpu-demo-', suffix='.log')[1]
    logging.captureWarnings(True)
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    logging.basicConfig(
        filename=path, level=logging.INFO, force=True,
        format='%(asctime)s %(levelname)s %(name)s %(message)s')
    return path


def main() -> int:
    """Tell it."""
    begin = time.monotonic()
    memory.use()
    memory.collect_rarely()
    log = _log_to_file()
    told = teller.Teller()
    case = story.Story('tell')
    case.teller = told
    case.log_path = log
    result = unittest.TestResult()
    # What Nova's fixtures print is no part of the story.
    with open(log, 'a') as stray, contextlib.redirect_stderr(stray):
        with warnings.catch_warnings():
            case.run(result)
    for _, trace in result.errors + result.failures:
        told.check(f'The story was told to its end\n{trace}', False)
    seconds = time.monotonic() - begin
    print(f'\n{told.checks - len(told.failures)} of {told.checks} checks '
          f'held, in {seconds:.0f} s.')
    if told.failures or not told.checks:
        print(f'The log of all services: {log}')
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
