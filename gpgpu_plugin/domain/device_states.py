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
"""The life cycle of a device: states, events and the one table of both.

                        claim                activate
      +----------> available -----> provisioning -----> assigned
      |               |   ^           |   |   |             |
      |       suspect |   +-----------+   |   | fault       | release
      |               |   abort_untouched |   |             |
      |               v                   |   |             v
      |          quarantined <------------|---+           dirty <------+
      |               ^  |                | abort_touched   |  ^       |
      |               |  |                +---------------->|  |       |
      |               |  +----------------------------------|--+       |
      |               |    operator_release                 | clean    |
      |  clean_passed | clean_failed                        v          |
      +---------------+--------------------------------- cleaning -----+
                                                     clean_interrupted

``enabled`` (the operator's) and ``present`` (the scan's) are separate facts,
not states: losing or disabling an assigned card changes neither its state
nor its assignment.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping

from gpgpu_plugin import exception


class DeviceState(enum.StrEnum):
    """Where a device is in its life cycle."""

    AVAILABLE = 'available'
    PROVISIONING = 'provisioning'
    ASSIGNED = 'assigned'
    DIRTY = 'dirty'
    CLEANING = 'cleaning'
    QUARANTINED = 'quarantined'


class DeviceEvent(enum.StrEnum):
    """What can happen to a device."""

    CLAIM = 'claim'
    SUSPECT = 'suspect'
    ACTIVATE = 'activate'
    ABORT_UNTOUCHED = 'abort_untouched'
    ABORT_TOUCHED = 'abort_touched'
    FAULT = 'fault'
    RELEASE = 'release'
    CLEAN = 'clean'
    CLEAN_PASSED = 'clean_passed'
    CLEAN_FAILED = 'clean_failed'
    CLEAN_INTERRUPTED = 'clean_interrupted'
    OPERATOR_RELEASE = 'operator_release'


_S, _E = DeviceState, DeviceEvent

TRANSITIONS: Mapping[tuple[DeviceState, DeviceEvent], DeviceState] = (
    types.MappingProxyType({
        (_S.AVAILABLE, _E.CLAIM): _S.PROVISIONING,
        (_S.AVAILABLE, _E.SUSPECT): _S.QUARANTINED,
        (_S.PROVISIONING, _E.ACTIVATE): _S.ASSIGNED,
        (_S.PROVISIONING, _E.ABORT_UNTOUCHED): _S.AVAILABLE,
        (_S.PROVISIONING, _E.ABORT_TOUCHED): _S.DIRTY,
        (_S.PROVISIONING, _E.FAULT): _S.QUARANTINED,
        (_S.ASSIGNED, _E.RELEASE): _S.DIRTY,
        (_S.DIRTY, _E.CLEAN): _S.CLEANING,
        (_S.CLEANING, _E.CLEAN_PASSED): _S.AVAILABLE,
        (_S.CLEANING, _E.CLEAN_FAILED): _S.QUARANTINED,
        (_S.CLEANING, _E.CLEAN_INTERRUPTED): _S.DIRTY,
        (_S.QUARANTINED, _E.OPERATOR_RELEASE): _S.DIRTY,
    }))


def next_state(state: DeviceState, event: DeviceEvent) -> DeviceState:
    """The state after an event.

    :raises InvalidTransition: the table has no such pair
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise exception.InvalidTransition(
            kind='device', name='', reason='', state=state,
            event=event) from None
