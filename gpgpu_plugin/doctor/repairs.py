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
"""Which repairs are executed, and on which hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable

from gpgpu_plugin.doctor import drift

Batches = dict[tuple[drift.Repair, ...], list[str]]
"""Hosts by the repairs that each of them executes."""

_TWICE = ('A device of this host is assigned twice, and an iteration of its '
          'nova-compute might release it while one of the two guests runs. '
          'Settle that first')
_ITERATIONS = (drift.Repair.COMPARE, drift.Repair.OFFER)


def allowed(found: Collection[drift.Drift]) -> list[drift.Drift]:
    """Return drifts, without repairs that another drift forbids."""
    forbidden = {one.host for one in found
                 if one.name == 'device_assigned_twice'}
    return [
        dataclasses.replace(one, repair=None, reason=_TWICE)
        if one.host in forbidden and one.repair in _ITERATIONS
        else one for one in found]


def by_hosts(found: Iterable[drift.Drift]) -> Batches:
    """Return the repairs that hosts execute."""
    wanted: dict[str, set[drift.Repair]] = {}
    for one in found:
        if one.host is not None and one.repair in drift.OF_HOST:
            wanted.setdefault(one.host, set()).add(one.repair)
    batches: Batches = {}
    for host, its in sorted(wanted.items()):
        batches.setdefault(tuple(
            repair for repair in drift.OF_HOST if repair in its),
            []).append(host)
    return batches
