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
"""Which host should get vGPUs, where one GPU has one type at a time.

A GPU that was started with a type is of no use for whole-GPU requests and for
other types, so that it is filled before another one is started.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence

from gpgpu_plugin.domain.weighing import policy

_STARTED = 1000.0
"""Cost of starting a GPU; more than any number of units left on one."""


def gain(available: Iterable[int], most: int, count: int,
         is_spread: bool = False) -> float:
    """Return the worth of taking units on a host; more is better.

    :param available: units of the type on each GPU
    :param most: units of a GPU that has no other ones
    :param is_spread: the host with the most units first
    :returns: policy.UNFIT: there are too few
    """
    units = sorted(number for number in available if number > 0)
    if sum(units) < count:
        return policy.UNFIT
    if is_spread:
        return float(sum(units))
    started, left = _take(units, most, count)
    # Of equal choices the fullest host.
    return -_STARTED * started - left - sum(units) / _STARTED


def _take(units: Sequence[int], most: int, count: int) -> tuple[int, int]:
    """Take units, those of the fullest GPU first.

    :returns: how many GPUs are started, and the units that are left on the
        GPUs from which some were taken
    """
    started = left = 0
    for number in units:
        if not count:
            break
        taken = min(number, count)
        count -= taken
        started += number == most
        left += number - taken
    return started, left
