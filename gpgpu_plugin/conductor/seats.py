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
"""The rows that what was chosen is held by: a card, a VF, or a seat for an
mdev, which is made where a card has none that is free."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from collections.abc import Iterator

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.allocation import offer
from gpgpu_plugin.domain.vgpu import capability

_AVAILABLE = device_rules.DeviceState.AVAILABLE


def take(session: orm.Session, state: capacity.GroupCapacity,
         chosen: Iterable[offer.Selection],
         ) -> Iterator[models.Device]:
    """The rows of a group for what was chosen of it, which were looked at
    under the host's lock.

    Each row must be claimed before the next one is asked for. A seat that is
    made is of the state from then on.
    """
    cards = {card.stable_id: card for card in state.cards}
    for each in chosen:
        card = cards[each.gpu_id]
        if each.vgpu_type == naming.PASSTHROUGH:
            yield card
            continue
        vgpus = device_db.vgpu_capability(card)
        if (vgpus is not None
                and vgpus.mechanism == capability.VGPUMechanism.VF):
            seat = state.free_vfs(card)[0]
        else:
            seat = _mdev_row_id(session, card, state.children[card.id])
            if seat.id is None:
                state.children[card.id].append(seat)
                session.flush()
        seat.vgpu_type, seat.placement_id = each.vgpu_type, each.placement_id
        yield seat


def _mdev_row_id(session: orm.Session, card: models.Device,
               children: Iterable[models.Device]) -> models.Device:
    """A free seat of the card, else a new one."""
    seats = {child.stable_id: child for child in children
             if child.kind == 'mdev'}
    free = [seat for _, seat in sorted(seats.items())
            if seat.state == _AVAILABLE]
    if free:
        return free[0]
    number = 0
    while (stable_id := pci.mdev_row_id(card.stable_id, number)) in seats:
        number += 1
    seat = models.Device(
        uuid=str(uuid.uuid4()), host_id=card.host_id, parent_id=card.id,
        group_id=card.group_id, kind='mdev', stable_id=stable_id,
        address=card.address, state=str(_AVAILABLE), enabled=True,
        present=True, generation=0, pci_function=device_db.dump(
            pci.PCIFunction(id=stable_id, address=card.address)))
    session.add(seat)
    return seat
