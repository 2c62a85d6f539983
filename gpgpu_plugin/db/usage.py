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
"""Rows of ``usages``, which are made of assignments before these go."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import models

_COPIED = ('instance_uuid', 'role', 'project_id', 'user_id', 'vgpu_type',
           'resource_class', 'ended_at')

_COLUMNS = ('assignment_uuid', 'began_at', 'host', 'variant', *_COPIED)


def keep(session: orm.Session, which: sa.ColumnElement[bool]) -> None:
    """Store the usage of ended assignments.

    :param which: condition on ``assignments``
    """
    found = (
        sa.select(
            models.Assignment.uuid, models.Assignment.claimed_at,
            models.Host.name, models.Variant.name,
            *(getattr(models.Assignment, name) for name in _COPIED))
        .join(models.Host, models.Assignment.host_id == models.Host.id)
        .join(models.Device, models.Assignment.device_id == models.Device.id)
        .outerjoin(models.Group, models.Device.group_id == models.Group.id)
        .outerjoin(models.Variant,
                   models.Group.variant_id == models.Variant.id)
        .where(models.Assignment.active.is_(None),
               models.Assignment.ended_at.is_not(None), which))
    # Not INSERT ... SELECT, for which MariaDB locks each row that it reads,
    # those of the hosts too.
    rows = [dict(zip(_COLUMNS, row, strict=True))
            for row in session.execute(found)]
    if rows:
        session.execute(sa.insert(models.Usage), rows)
