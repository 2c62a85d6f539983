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
"""What cards were before a guest had them, one small file a function.

Written when a card is prepared and compared when it is cleaned, so it must
survive a restart of nova-compute, a reboot of the host and a power cut.
"""

from __future__ import annotations

import json
import pathlib
import typing
from collections.abc import Mapping

from gpgpu_plugin import durable
from gpgpu_plugin import exception


class Baselines:
    """:param folder: made when it is first written to"""

    def __init__(self, folder: str) -> None:
        self._folder = pathlib.Path(folder)

    def record(self, stable_id: str, assignment: str,
               shape: Mapping[str, str],
               notes: Mapping[str, str | None] | None = None) -> None:
        """Remember what a function is now; what it was when the same
        assignment began stays, as its guest has had it since.

        :param notes: what is to be known of it while it is held
        :raises HostError: what is there cannot be read
        :raises HostNotReady: it cannot be written
        """
        if self._load(stable_id).get('assignment') != assignment:
            self._save(stable_id, {
                'assignment': assignment, 'shape': dict(shape),
                'notes': dict(notes or {})})

    def note(self, stable_id: str, assignment: str,
             notes: Mapping[str, str | None]) -> None:
        """Note something else of a function while it is held.

        :raises HostError: what is there cannot be read, or is of another
            assignment
        :raises HostNotReady: it cannot be written
        """
        record = self._load(stable_id)
        if record.get('assignment') != assignment:
            raise exception.HostError(
                path=str(self._path(stable_id)),
                reason=f'it is about another holding than {assignment}')
        self._save(stable_id, {**record, 'notes': dict(notes)})

    def notes(self, stable_id: str,
              assignment: str) -> dict[str, str | None]:
        """What was noted when an assignment began; empty if the last one to
        begin was another.

        :raises HostError: what is there cannot be read
        """
        record = self._load(stable_id)
        if record.get('assignment') != assignment:
            return {}
        return dict(record.get('notes', {}))

    def differences(self, stable_id: str, cleaning: str,
                    shape: Mapping[str, str]) -> list[str]:
        """What is not as it was, one phrase each; none if nothing is known
        of before, as no guest had it.

        It is told to one cleaning only, however often that begins: another
        one comes of an operator, who released the card since.

        :raises HostError: what it was cannot be read
        """
        record = self._load(stable_id)
        before = record.get('shape', shape)
        differences = [
            f'{name} was {before.get(name)}, is {shape.get(name)}'
            for name in sorted(before.keys() | shape.keys())
            if before.get(name) != shape.get(name)]
        if not differences or record.get('told', cleaning) != cleaning:
            return []
        self._save(stable_id, {**record, 'told': cleaning})
        return differences

    def _load(self, stable_id: str) -> dict[str, typing.Any]:
        path = self._path(stable_id)
        try:
            return dict(json.loads(path.read_text()))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as exc:
            raise exception.HostError(
                path=str(path), reason=f'what the card was before its guest '
                                       f'cannot be read: {exc}') from None

    def _save(self, stable_id: str, record: Mapping[str, object]) -> None:
        path = self._path(stable_id)
        try:
            durable.replace(path, json.dumps(record))
        except OSError as exc:
            raise exception.HostNotReady(
                path=str(path), reason=f'cannot be written: {exc.strerror}',
            ) from None

    def _path(self, stable_id: str) -> pathlib.Path:
        return self._folder / f'{stable_id.strip("/").replace("/", "_")}.json'
