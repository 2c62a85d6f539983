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
"""Authors of transactions, which their events name."""

from __future__ import annotations

import dataclasses
import typing

from sqlalchemy import orm

_KEY = 'gpgpu_author'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Author:
    """Caller for whom a transaction runs.

    :ivar actor: such as ``host compute1`` or ``operator root@controller``
    :ivar request_id: of the user's request to Nova, or of the caller's own
    """

    actor: str
    request_id: str | None = None


CONDUCTOR = Author(actor='conductor')
"""Author of what no caller asked for."""


def note(session: orm.Session, author: Author) -> None:
    """Note with a transaction for whom it runs."""
    session.info[_KEY] = author


def of(session: orm.Session) -> Author:
    """Return for whom a transaction runs."""
    return typing.cast(Author, session.info.get(_KEY, CONDUCTOR))
