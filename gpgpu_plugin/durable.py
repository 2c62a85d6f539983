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
"""Replacement of small files that survives a power failure."""

from __future__ import annotations

import os
import pathlib


def replace(path: pathlib.Path, text: str) -> None:
    """Replace the whole file, and create its directory if needed.

    The new text is on disk when the function returns. If the power fails
    before, the file has either the complete old text or the complete new one.

    :raises OSError: the file cannot be written
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix('.new')
    with new.open('w', encoding='utf-8') as file:
        file.write(text)
        file.flush()
        # Otherwise the new name may reach the disk before the text.
        os.fsync(file.fileno())
    os.replace(new, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
