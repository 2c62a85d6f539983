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
"""Rows of values of the conductor, for people and for programs."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterable
from collections.abc import Sequence

from cliff import columns

_INITIALISMS = ('dsn', 'id', 'iommu', 'numa', 'ram', 'uuid')


class Cell(columns.FormattableColumn[typing.Any]):
    """People read ``-`` for none, lists and counts without brackets;
    programs get the value itself."""

    def human_readable(self) -> str:
        value = self._value
        if value is None or value == () or value == {}:
            return '-'
        if isinstance(value, dict):
            return ', '.join(f'{key} {count}'
                             for key, count in value.items())
        if isinstance(value, (list, tuple)):
            return ', '.join(str(each) for each in value)
        if isinstance(value, bool):
            return 'yes' if value else 'no'
        return str(value)

    def machine_readable(self) -> typing.Any:
        # Plain lists and strings: YAML would tag a tuple or an enum.
        return json.loads(json.dumps(self._value))


def title(name: str) -> str:
    """``node_uuid`` is headed ``Node UUID``."""
    return ' '.join(
        word.upper() if word in _INITIALISMS
        else word.replace('gpu', 'GPU') if word in ('vgpu', 'pgpu')
        else word.title() for word in name.split('_'))


def rows(values: Iterable[typing.Any], names: Sequence[str],
         ) -> tuple[list[str], list[list[Cell]]]:
    """A listing of some fields, as a cliff lister returns it."""
    return [title(name) for name in names], [
        [Cell(getattr(value, name)) for name in names] for value in values]


def one(value: typing.Any) -> tuple[list[str], list[Cell]]:
    """All fields of one value, as a cliff show command returns it."""
    names = [field.name for field in dataclasses.fields(value)]
    return ([title(name) for name in names],
            [Cell(getattr(value, name)) for name in names])
