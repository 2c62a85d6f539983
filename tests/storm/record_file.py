# SPDX-License-Identifier: Apache-2.0
"""Files of records that are read while their writer runs or was killed."""

from __future__ import annotations

import json
import os
import pathlib
import typing


class RecordFile:
    """A file with a record in each line, which outlives its writer.

    A write that goes over the end of a page becomes visible page by page, and
    a kill may end it there. Readers see complete records only, and the next
    writer removes the rest of one that is not complete.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file: int | None = None

    def read(self) -> list[typing.Any]:
        """Return all records; none if there is no file."""
        return [json.loads(line) for line in self._complete().splitlines()]

    def append(self, *record: object) -> None:
        """Write one record."""
        if self._file is None:
            self._file = os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.ftruncate(self._file, len(self._complete()))
        # One call: the process may be killed at any moment.
        os.write(self._file, f'{json.dumps(record)}\n'.encode())

    def _complete(self) -> bytes:
        text = self._path.read_bytes() if self._path.exists() else b''
        return text[:text.rfind(b'\n') + 1]
