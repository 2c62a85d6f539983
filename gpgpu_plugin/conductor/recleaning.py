# SPDX-License-Identifier: Apache-2.0
"""Available devices that must be cleaned before a guest gets them.

That is decided here alone. A device becomes dirty if nobody knows who had it,
or if it had a tenant and has not passed each step that the policy of its
variant requires now. Until then it is not claimed either, see ``capacity``. A
device that never had a tenant stays available. One that waits since it cannot
pass the policy is cleaned when its variant was changed.

Nothing that nobody can get is dirty: nobody would clean it, so it would wait
for ever, and the host may use it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from sqlalchemy import orm

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import gpu as gpu_rules


def distrust(session: orm.Session, device: models.Device) -> bool:
    """Have an available device cleaned before the next guest gets it.

    One that nobody can get stays available, as one that has passed nothing
    yet. It becomes dirty when somebody can get it (``clean_again``).

    :returns: whether it is dirty now
    """
    if device.state != device_rules.DeviceState.AVAILABLE:
        return False
    if not _is_given(device):
        device.cleaned_steps = device_db.NOTHING_PASSED
        return False
    device_db.transition(session, device, device_rules.DeviceEvent.DISTRUST)
    device.clean_token = str(uuid.uuid4())
    return True


def _is_given(device: models.Device) -> bool:
    """Return whether a guest can get the device itself."""
    return device.group is not None and gpu_rules.is_given(
        device_db.pci_function(device))


def clean_again(session: orm.Session,
                hosts: Mapping[int, models.Host]) -> None:
    """Make available devices dirty of which more is required now.

    :param hosts: (locked) hosts by id
    """
    for device, policy in device_db.had_tenants(session, list(hosts)):
        was_doubted = device_db.is_doubted(device)
        if capacity.is_proven(device, policy) or not distrust(session, device):
            continue
        host = hosts[device.host_id]
        host_db.changed(host)
        if not was_doubted:
            # Otherwise the event is that of the doubt.
            event_db.add(session, 'distrust', host.name, device, detail=(
                f'its last cleaning passed {device.cleaned_steps}, and the '
                f'cleaning policy {policy} requires more'))


def try_again(session: orm.Session, hosts: Mapping[int, models.Host],
              variant: models.Variant) -> None:
    """Have devices cleaned that wait for another policy of their variant.

    :param hosts: (locked) hosts by id
    """
    for device in device_db.of_hosts(session, list(hosts)):
        if (device.state == device_rules.DeviceState.DIRTY
                and device.clean_attempt is not None
                and device.group is not None
                and device.group.variant_id == variant.id):
            device_db.try_again(device)
            host_db.changed(hosts[device.host_id])
