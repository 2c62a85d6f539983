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
"""``changes_since``: exact, however late a change commits.

A number that a writer takes may become visible after a greater one, and a
reader that has seen the greater would skip it for ever. So writers only mark
a host as changed; numbers are given by the readers, to what is visible, one
reader at a time.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.db import api
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.objects import inventory as objects


def changes_since(db: api.Database, generation: int) -> objects.Changes:
    """Hosts that changed after a number (ConductorAPI.changes_since)."""
    with db.reader() as session:
        unnumbered = session.scalar(
            sa.select(models.Host.id)
            .where(models.Host.change_number.is_(None)).limit(1))
    if unnumbered is not None:
        db.write(_number)
    with db.reader() as session:
        hosts = list(session.scalars(
            sa.select(models.Host)
            .where(models.Host.change_number > generation)
            .order_by(models.Host.change_number)))
        # The last number read in the same snapshot as the hosts.
        newest = max((host.change_number or 0 for host in hosts), default=0)
        if not hosts:
            newest = session.scalar(
                sa.select(sa.func.max(models.Host.change_number))) or 0
        live = [host.id for host in hosts if not host.deleted]
        states = capacity.load(session, live) if live else {}
        return objects.Changes(
            generation=newest,
            hosts=tuple(inventory.view(host, states.get(host.id, []))
                        for host in hosts))


def _number(session: orm.Session) -> None:
    last = host_db.lock_row(session, 'changes')
    # A host that is being changed right now is passed over: its writer
    # leaves it unnumbered, and the next reader finds it.
    hosts = session.scalars(
        sa.select(models.Host).where(models.Host.change_number.is_(None))
        .order_by(models.Host.id).with_for_update(skip_locked=True)
        .execution_options(populate_existing=True))
    for host in hosts:
        last.value += 1
        host.change_number = last.value
