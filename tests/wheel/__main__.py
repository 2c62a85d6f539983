# SPDX-License-Identifier: Apache-2.0
"""Check that the wheel works alone: python3 -m tests.wheel

Builds the sdist and the wheel, installs the wheel into a fresh environment of
each Python at hand, without Nova, and lets its programs run there. Needs
nothing but Python, git and a package index. Exit code 1 when a claim is false.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import time
from concurrent import futures

from tests.wheel import claims
from tests.wheel import distribution
from tests.wheel import fresh
from tests.wheel import interpreters


def prove(interpreter: interpreters.Interpreter, wheel: pathlib.Path,
          folder: pathlib.Path) -> bool:
    """Check all claims on one interpreter; return whether all hold."""
    environment = fresh.Fresh(interpreter, wheel, folder)
    wrong, word = '', ''
    try:
        environment.prove()
    except claims.WrongError as exc:
        # A newer one than we promise may lack wheels of what we need.
        word = ('FALSE' if interpreter.minor in interpreters.promised()
                else 'NOT PROVEN, and not promised')
        wrong = f'{word}: {exc}'
    lines = [*environment.proved, *([wrong] if wrong else [])]
    # In one piece, as several are tried at once.
    print('\n    '.join([f'{interpreter} ({interpreter.path})', *lines]),
          flush=True)
    return word != 'FALSE'


def main() -> int:
    """Run the program; see the module."""
    began = time.monotonic()
    found = interpreters.found()
    oldest = '{}.{}'.format(*interpreters.OLDEST)
    if oldest not in [interpreter.minor for interpreter in found]:
        print(f'FALSE: there is no Python {oldest}, the oldest promised, that '
              f'can make an environment')
        return 1
    with tempfile.TemporaryDirectory(prefix='gpgpu-wheel-') as name:
        folder = pathlib.Path(name)
        print(f'Built with {found[0]}', flush=True)
        try:
            wheel = distribution.build(found[0].path, folder)
        except claims.WrongError as exc:
            print(f'    FALSE: {exc}')
            return 1
        with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            proved = list(pool.map(lambda interpreter: prove(
                interpreter, wheel, folder / interpreter.minor), found))
    absent = sorted(set(interpreters.promised()) - {
        interpreter.minor for interpreter in found})
    if absent:
        print(f'Promised and not at hand here: {", ".join(absent)}')
    print(f'{len(proved)} versions of Python, {time.monotonic() - began:.0f} '
          f's: {"all claims hold" if all(proved) else "a claim is FALSE"}')
    return 0 if all(proved) else 1


if __name__ == '__main__':
    sys.exit(main())
