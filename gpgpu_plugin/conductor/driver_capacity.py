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
"""What hosts tell of their cards' room is kept with the cards."""

from __future__ import annotations

import dataclasses

from sqlalchemy import orm

from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain.vgpu import driver_capacity
from gpgpu_plugin.objects import report as report_obj


def note(session: orm.Session, host: models.Host,
         driver_capacities: report_obj.DriverCapacities | None) -> None:
    """Keep what a (locked) host tells of its cards."""
    if not driver_capacities:
        return
    places = assignment_db.places(session, host.id, [
        name for each in driver_capacities.values() for name in each.existing])
    used = device_db.in_use(session, host.id)
    for card in device_db.by_stable_id(session, host.id, driver_capacities):
        before = device_db.facts(card)
        now = dataclasses.replace(
            before,
            driver_capacity=driver_capacity.newer(
                before.driver_capacity,
                driver_capacity.named(
                    driver_capacities[card.stable_id], places
                ),
                used,
            ),
        )
        # When it was said is kept, too, and is no news to anybody.
        card.facts = device_db.dump_facts(now)
        if now != before:
            host_db.changed(host)
