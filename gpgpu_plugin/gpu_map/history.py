# SPDX-License-Identifier: Apache-2.0
"""How many GPUs of each host were in use in the last hours, from usage."""

from __future__ import annotations

import collections
import datetime
from collections.abc import Iterable
from collections.abc import Mapping

from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import usage as usage_obj

HOURS = 24
"""Number of samples, one an hour; the last one is now."""


def since(now: datetime.datetime) -> datetime.datetime:
    """Return the time of the first sample."""
    return now - datetime.timedelta(hours=HOURS - 1)


def in_use(usages: Iterable[usage_obj.UsageInfo],
           devices: Iterable[admin.DeviceInfo], now: datetime.datetime,
           ) -> dict[str, tuple[int, ...]]:
    """Return the number of GPUs in use at each sample, by host.

    A GPU whose vGPUs are in use counts once. A usage between two samples does
    not count.

    :param devices: which vGPU is on which GPU; a device that is not among
        them counts as a GPU
    :param now: UTC, with its zone
    """
    gpus = _gpus(devices)
    samples = [since(now) + datetime.timedelta(hours=number)
               for number in range(HOURS)]
    found: dict[str, list[set[str]]] = collections.defaultdict(
        lambda: [set() for _ in samples])
    for usage in usages:
        device = usage.device_uuid or usage.uuid
        began, ended = _time(usage.began_at), _time(usage.ended_at)
        for sample, used in zip(samples, found[usage.host], strict=True):
            if (began is None or began <= sample) and (
                    ended is None or sample < ended):
                used.add(gpus.get(device, device))
    return {host: tuple(map(len, used)) for host, used in found.items()}


def _time(text: str | None) -> datetime.datetime | None:
    return None if text is None else datetime.datetime.fromisoformat(text)


def _gpus(devices: Iterable[admin.DeviceInfo]) -> Mapping[str, str]:
    """Return the UUID of the GPU that each device is or is on."""
    parents = {device.uuid: device.parent for device in devices}
    found = {}
    for uuid in parents:
        gpu = uuid
        while (parent := parents.get(gpu)) in parents and parent is not None:
            gpu = parent
        found[uuid] = gpu
    return found
