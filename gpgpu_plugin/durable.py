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
"""Small files that survive a power cut."""

from __future__ import annotations

import os
import pathlib


def replace(path: pathlib.Path, text: str) -> None:
    """Replace a file as a whole, and make the folder that it is in.

    It is on disk when the function returns; whenever the power fails before,
    all of the old text is there or all of the new one.

    :raises OSError: it cannot be written
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix('.new')
    with new.open('w', encoding='utf-8') as file:
        file.write(text)
        file.flush()
        # Else the name may be on disk before the text is.
        os.fsync(file.fileno())
    os.replace(new, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
