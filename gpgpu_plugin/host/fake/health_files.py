# SPDX-License-Identifier: Apache-2.0
"""Files in which a fake kernel shows the health of a function.

The counts of single errors, of which the plugin reads the total only, are all
in one line.
"""

from __future__ import annotations

import pathlib

from gpgpu_plugin.host.discovery import health_files

_LINES = {
    health_files.FATAL: ('Data Link Protocol', 'TOTAL_ERR_FATAL'),
    health_files.NONFATAL: ('Completion Timeout', 'TOTAL_ERR_NONFATAL'),
    health_files.CORRECTABLE: ('Receiver Error', 'TOTAL_ERR_COR')}


def write_link(folder: pathlib.Path, width: int = 16,
               maximum: int = 16) -> None:
    """Write the width of the link above a function, or below a port."""
    (folder / health_files.WIDTH).write_text(f'{width}\n')
    (folder / health_files.MAX_WIDTH).write_text(f'{maximum}\n')


def write_errors(folder: pathlib.Path, *, fatal: int = 0, nonfatal: int = 0,
                 correctable: int = 0) -> None:
    """Write how many errors Advanced Error Reporting has counted."""
    for name, count in ((health_files.FATAL, fatal),
                        (health_files.NONFATAL, nonfatal),
                        (health_files.CORRECTABLE, correctable)):
        error, total = _LINES[name]
        (folder / name).write_text(
            f'Undefined 0\n{error} {count}\n{total} {count}\n')
