# SPDX-License-Identifier: Apache-2.0
"""Output of the story: numbered headings, sentences, tables and checks."""

from __future__ import annotations

import shutil
import sys
import textwrap
import typing
from collections.abc import Sequence


class Teller:
    """Printer of the story, which counts the checks that fail.

    :ivar at: where the story is
    """

    def __init__(self, out: typing.TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._chapter = 0
        self._width = min(shutil.get_terminal_size().columns, 100)
        self._title = 'The services start'
        self.at = self._title
        self.checks = 0
        self.failures: list[str] = []

    def heading(self, title: str) -> None:
        """Begin the next chapter."""
        self._chapter += 1
        line = self._title = self.at = f'{self._chapter}. {title}'
        self._print('', line, '=' * len(line))

    def say(self, text: str) -> None:
        """Print a paragraph."""
        self._print('', *textwrap.wrap(text, self._width))

    def command(self, arguments: Sequence[str], output: str) -> None:
        """Print a command as typed, and its output."""
        self._print('', '  $ gpgpu-manage ' + ' '.join(arguments),
                    *(f'  {line}' for line in output.splitlines()))

    def facts(self, title: str, rows: Sequence[tuple[str, object]]) -> None:
        """Print names and values in columns."""
        width = max((len(name) for name, _ in rows), default=0)
        self._print('', f'  {title}',
                    *(f'    {name:<{width}}  {value}'
                      for name, value in rows))

    def expect(self, text: str) -> None:
        """Remember the next check, to name it if it never passes."""
        self.at = f'{self._title}: {text}'

    def check(self, text: str, passed: object) -> None:
        """Print a promise and whether it is kept, and count it."""
        self.at = f'{self._title}: what follows on "{text}"'
        self.checks += 1
        if not passed:
            self.failures.append(text)
        self._print(f'  {"✔" if passed else "✘"} {text}')

    def _print(self, *lines: str) -> None:
        print(*lines, sep='\n', file=self._out, flush=True)
