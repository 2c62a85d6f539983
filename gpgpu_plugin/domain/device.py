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
"""What a device's three facts (state, enabled, present) mean together."""

from __future__ import annotations

from collections.abc import Collection

from gpgpu_plugin.domain import device_states

UNMANAGED, MISSING, DISABLED = 'unmanaged', 'missing', 'disabled'

SHOWN_STATES = (UNMANAGED, MISSING, DISABLED, *device_states.DeviceState)

_HELD = (device_states.DeviceState.PROVISIONING,
         device_states.DeviceState.ASSIGNED)

# What of its vGPUs' states a card shows, the most important first.
_OF_CHILDREN = (
    device_states.DeviceState.ASSIGNED,
    device_states.DeviceState.PROVISIONING,
    device_states.DeviceState.CLEANING, device_states.DeviceState.DIRTY,
    device_states.DeviceState.QUARANTINED)


def offered(state: str, *, enabled: bool, present: bool,
            managed: bool) -> bool:
    """Whether a claim may take the device."""
    return (state == device_states.DeviceState.AVAILABLE
            and enabled and present and managed)


def shown_state(state: str, *, enabled: bool, present: bool,
                managed: bool, children: Collection[str] = ()) -> str:
    """The one word an operator reads.

    A held device is shown as held, whatever else is wrong with it: the
    assignment stays until Nova ends it.

    :param children: states of what is carved out of it
    """
    if state in _HELD:
        return str(state)
    if state == device_states.DeviceState.AVAILABLE:
        derived = next((each for each in _OF_CHILDREN if each in children),
                       None)
        if derived in _HELD or (derived and managed and present):
            return str(derived)
    if not managed:
        return UNMANAGED
    if not present:
        return MISSING
    if not enabled and state == device_states.DeviceState.AVAILABLE:
        return DISABLED
    return str(state)
