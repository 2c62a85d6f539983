# SPDX-License-Identifier: Apache-2.0
"""``python -m demo``: tell the story; exit 0 only if every check passed."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
import unittest
import warnings

from demo import story
from demo import teller
from tests.fixtures import memory

LIMIT = 15 * 60


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


def _give_up(telling: teller.Teller, limit: float, folder: str,
             log: str) -> None:
    """End the process, which waits for something in vain."""
    telling.check(f'Not told to its end within {limit:g} s; it was at: '
                  f'{telling.at}', False)
    print(f'The log of all services: {log}')
    # The story goes on, and may create a file in a folder just being removed.
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            break
    os._exit(1)


def _tell(telling: teller.Teller, log: str, page: str,
          limit: float) -> None:
    case = story.Story('tell')
    case.teller = telling
    case.log_path = log
    case.map_path = page
    result = unittest.TestResult()
    # The limit is of the whole story, and is told in one line.
    os.environ.pop('OS_TEST_TIMEOUT', None)
    with tempfile.TemporaryDirectory(prefix='gpgpu-demo-') as folder:
        tempfile.tempdir = folder
        watchdog = threading.Timer(
            limit, _give_up, (telling, limit, folder, log))
        watchdog.daemon = True
        watchdog.start()
        # What Nova's fixtures print is no part of the story.
        with open(log, 'a') as stray, contextlib.redirect_stderr(stray):
            with warnings.catch_warnings():
                case.run(result)
        watchdog.cancel()
    for _, trace in result.errors + result.failures:
        with open(log, 'a') as stray:
            stray.write(trace)
        telling.check(f'The story ended early, at: {telling.at}: '
                      f'{trace.strip().splitlines()[-1]}', False)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='demo', description=__doc__)
    parser.add_argument(
        '--limit', type=float, default=LIMIT, metavar='SECONDS',
        help='fail when it takes longer (default: %(default)s)')
    parser.add_argument(
        '--map', metavar='FILE',
        help='write the map of the cloud to this file (default: a new file '
             'in the temporary directory)')
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Tell it."""
    parsed = _parse(arguments)
    begin = time.monotonic()
    log = _log_to_file()
    memory.use()
    memory.collect_rarely()
    telling = teller.Teller()
    page = os.path.abspath(parsed.map or f'{log.removesuffix(".log")}.html')
    _tell(telling, log, page, parsed.limit)
    seconds = time.monotonic() - begin
    print(f'\n{telling.checks - len(telling.failures)} of '
          f'{telling.checks} checks passed, in {seconds:.0f} s.')
    if telling.failures or not telling.checks:
        print(f'The log of all services: {log}')
        return 1
    print(f'Open the map of the cloud in a browser: {page}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
