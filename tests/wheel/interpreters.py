# SPDX-License-Identifier: Apache-2.0
"""Interpreters of this machine with which the plugin can be tested."""

from __future__ import annotations

import configparser
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

OLDEST = (3, 11)
# A venv with pip in it, which Debian's own Python makes with another package
# alone; pyenv's shims fail for a version that is not chosen.
ASK = 'import ensurepip, sys, venv; print(*sys.version_info[:3])'
NAME = re.compile(r'python3\.(\d+)')
CLASSIFIER = re.compile(r'Programming Language :: Python :: (3\.\d+)')
TOP = pathlib.Path(__file__).resolve().parents[2]


class Interpreter(NamedTuple):
    """One interpreter of Python."""

    version: tuple[int, int, int]
    path: str

    def __str__(self) -> str:
        return 'Python {}.{}.{}'.format(*self.version)

    @property
    def minor(self) -> str:
        """Return the minor version, such as 3.11."""
        return '{}.{}'.format(*self.version)


def found() -> list[Interpreter]:
    """Return one interpreter of each minor version, oldest first."""
    by_minor: dict[str, Interpreter] = {}
    for path in _candidates():
        interpreter = _ask(path)
        if interpreter and interpreter.version >= OLDEST:
            by_minor.setdefault(interpreter.minor, interpreter)
    return sorted(by_minor.values())


def promised() -> list[str]:
    """Return the versions of Python that setup.cfg names."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(TOP / 'setup.cfg', encoding='utf-8')
    return CLASSIFIER.findall(parser['metadata']['classifiers'])


def newest() -> Interpreter | None:
    """Return the newest promised one, if it is newer than this one."""
    names = promised()
    return max((interpreter for interpreter in found()
                if interpreter.minor in names
                and interpreter.version[:2] > sys.version_info[:2]),
               default=None)


def _candidates() -> Iterator[str]:
    yield getattr(sys, '_base_executable', sys.executable)
    pyenv = pathlib.Path(os.environ.get('PYENV_ROOT', '~/.pyenv'))
    folders = [pathlib.Path(name) for name in os.get_exec_path()]
    folders += sorted(pyenv.expanduser().glob('versions/*/bin'), reverse=True)
    for folder in folders:
        for path in sorted(folder.glob('python3.*')):
            if NAME.fullmatch(path.name):
                yield str(path)


def _ask(path: str) -> Interpreter | None:
    done = subprocess.run([path, '-I', '-c', ASK], capture_output=True,
                          text=True, timeout=60, check=False)
    if done.returncode:
        return None
    major, minor, micro = map(int, done.stdout.split())
    return Interpreter((major, minor, micro), path)


if __name__ == '__main__':
    interpreter = newest()
    print(interpreter.path if interpreter else '')
