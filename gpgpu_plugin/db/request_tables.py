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
"""Table of the kinds of requests; ``models`` makes it part of all."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import column


class RequestKind(column.Base):
    """Requests that schedulers were asked for, of one kind.

    ``vcpus``, ``memory_mib``, ``resource_class``, ``units``: the kind; an
    empty class: no GPUs. ``weight``: how many there were, each multiplied by a
    number that grows with time (db.request_kind): older ones count less
    without a write. ``arrivals``: how many there were.

    Unique key: a kind is counted in one row.
    """

    __tablename__ = 'request_kinds'
    __table_args__ = (sa.UniqueConstraint(
        'vcpus', 'memory_mib', 'resource_class', 'units',
        name='uq_request_kinds_kind'),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    vcpus: orm.Mapped[int]
    memory_mib: orm.Mapped[int]
    resource_class: orm.Mapped[str] = orm.mapped_column(column.NAME)
    units: orm.Mapped[int]
    weight: orm.Mapped[float] = orm.mapped_column(
        sa.Double(), default=0, server_default='0')
    arrivals: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, default=0, server_default='0')
