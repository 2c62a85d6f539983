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
"""Cleaning of available devices again, when more is required of them.

A device that had a tenant and has not passed each step that the policy of its
variant requires now becomes dirty, since the policy or its variant changed.
Until then it is not claimed either, see ``capacity``. A device that never had
a tenant stays available.
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


def clean_again(session: orm.Session,
                hosts: Mapping[int, models.Host]) -> None:
    """Make available devices dirty of which more is required now.

    A GPU that has vGPUs or VFs is left alone: nobody can have it whole, and
    its driver manages its memory.

    :param hosts: (locked) hosts by id
    """
    for device, policy in device_db.had_tenants(session, list(hosts)):
        if device_db.pci_function(device).has_vgpus:
            continue
        if not capacity.is_proven(device, policy):
            host = hosts[device.host_id]
            device_db.transition(
                session, device, device_rules.DeviceEvent.DISTRUST)
            device.clean_token = str(uuid.uuid4())
            event_db.add(session, 'distrust', host.name, device, detail=(
                f'its last cleaning passed '
                f'{device.cleaned_steps or "no known step"}, and the cleaning '
                f'policy {policy} requires more'))
            host_db.changed(host)
