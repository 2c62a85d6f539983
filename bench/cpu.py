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
"""CPU time of the parts of a race, as the kernel counts it.

Other work on the machine changes it far less than the time that passes.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

import sqlalchemy as sa

_PROC = pathlib.Path('/proc')
_TICKS = os.sysconf('SC_CLK_TCK')
_BROKER = 'beam.smp'
# Index in /proc/PID/stat after the command's name: utime and stime.
_USED = slice(11, 13)

Seconds = Mapping[str, float]
"""CPU seconds of each part of a race."""


def of_process(pid: int | str) -> float:
    """Return the CPU seconds of a process; 0: it has ended."""
    try:
        text = (_PROC / str(pid) / 'stat').read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, text.rpartition(')')[2].split()[_USED])) / _TICKS


def _with(name: str, wanted: Callable[[str], bool]) -> Iterator[str]:
    """Yield the processes of which a file of /proc has a certain text."""
    for folder in _PROC.glob('[0-9]*'):
        try:
            text = (folder / name).read_text(errors='replace')
        except (FileNotFoundError, ProcessLookupError):
            continue
        if wanted(text):
            yield folder.name


def of_database(url: str) -> float:
    """Return the CPU seconds of PostgreSQL's processes for a database.

    Each connection has one, which must not have ended. What its other
    processes do for all databases, such as to write them to the disk, is not
    among them.
    """
    name = f' {sa.make_url(url).database} '
    return sum(map(of_process, _with(
        'cmdline', lambda text: text.startswith('postgres:')
        and name in text)))


def of_broker() -> float:
    """Return the CPU seconds of RabbitMQ, which others may use as well."""
    return sum(map(of_process, _with(
        'comm', lambda text: text.strip() == _BROKER)))


def of_all(url: str, conductors: Iterable[int]) -> dict[str, float]:
    """Return the CPU seconds of all parts of a race but its clients."""
    return {'conductors': sum(map(of_process, conductors)),
            'database': of_database(url), 'broker': of_broker()}


def between(before: Seconds, after: Seconds) -> dict[str, float]:
    """Return what each part used between two readings."""
    return {part: after[part] - before[part] for part in before}
