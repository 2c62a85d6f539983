# SPDX-License-Identifier: Apache-2.0
"""State of assignments that survives a boot of the lab's machine."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterable

from gpgpu_plugin.domain import cleaning as cleaning_rules
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base as host_base

NUMVFS = {'1b36:0010': 4}
BASELINES = '/var/lib/gpgpu-lab-baselines'
"""Folder of baselines."""

_NOTES = pathlib.Path('/var/lib/gpgpu-lab.json')


def vf_device(vf: pci.PCIFunction, assignment_uuid: str,
              address: str | None = None) -> host_base.HostDevice:
    """Return an assignment of one of the NVMe's four VFs."""
    return host_base.HostDevice(
        assignment_uuid=assignment_uuid, stable_id=vf.id,
        address=address or vf.address, vgpu_type='vf4')


def display_device(gpu: pci.PCIFunction,
                   cleaning: str) -> host_base.HostDevice:
    """Return an assignment of a display that is being cleaned."""
    return host_base.HostDevice(
        assignment_uuid='kept', stable_id=gpu.id, address=gpu.address,
        cleaning=cleaning, steps=cleaning_rules.steps_of('reset+settings'))


def note(devices: Iterable[host_base.HostDevice]) -> None:
    """Store assignments, as the database of a conductor does."""
    _NOTES.write_text(json.dumps(
        [dataclasses.asdict(device) for device in devices]))


def noted() -> list[host_base.HostDevice]:
    """Return the assignments of the previous boot."""
    return [host_base.HostDevice(**fields)
            for fields in json.loads(_NOTES.read_text())]
