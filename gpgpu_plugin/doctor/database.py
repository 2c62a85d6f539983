# SPDX-License-Identifier: Apache-2.0
"""Drifts within the database: rows of one host compared with each other."""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Iterator

from gpgpu_plugin.doctor import drift
from gpgpu_plugin.doctor import view
from gpgpu_plugin.domain import device as device_rules


def compare(rows: view.HostRows) -> tuple[drift.Drift, ...]:
    """Return the drifts in the rows of a host.

    If it has not reported since a restore, they are those of the backup.
    """
    if rows.restored_since is not None:
        return (drift.of(
            'host_not_reported', rows.host, rows.host,
            database=f'it was restored; the host called last at '
                     f'{rows.restored_since}'),)
    return (*_devices(rows), *_capacities(rows),
            *usages(rows.host, rows.usages, {
                assignment.uuid for assignment in rows.assignments}))


def _devices(rows: view.HostRows) -> Iterator[drift.Drift]:
    by_device: dict[str, list[view.AssignedRow]] = (
        collections.defaultdict(list))
    for assignment in rows.assignments:
        by_device[assignment.device_uuid].append(assignment)
    for device_uuid, its in by_device.items():
        instances = ', '.join(assignment.instance_uuid for assignment in its)
        if len(its) > 1:
            yield drift.of(
                'device_assigned_twice', rows.host, device_uuid,
                database=f'{its[0].address} is assigned to {instances}')
        elif its[0].device_state not in device_rules.ASSIGNED_STATES:
            yield drift.of(
                'assignment_without_state', rows.host, device_uuid,
                database=f'{its[0].address} is {its[0].device_state} and '
                         f'assigned to {instances}')
    for device in rows.busy_devices:
        if device.uuid not in by_device:
            yield drift.of(
                'state_without_assignment', rows.host, device.uuid,
                database=f'{device.address} is {device.state} and has no '
                         f'active assignment')


def _capacities(rows: view.HostRows) -> Iterator[drift.Drift]:
    for capacity in rows.capacities:
        if capacity.stored != capacity.computed:
            yield drift.of(
                'capacity_wrong', rows.host,
                f'{capacity.variant}:{capacity.vgpu_type}',
                database=f'per GPU, maximum and remaining are stored as '
                         f'{_numbers(capacity.stored)}, and computed as '
                         f'{_numbers(capacity.computed)}')


def _numbers(numbers: tuple[int, int, int]) -> str:
    return ', '.join(map(str, numbers))


def usages(host: str | None, running: Collection[str],
           active: Collection[str]) -> Iterator[drift.Drift]:
    """Yield usages that go on without an active assignment.

    :param running: UUIDs of assignments whose usage goes on
    :param active: UUIDs of active assignments
    """
    for uuid in running:
        if uuid not in active:
            yield drift.of(
                'usage_without_assignment', host, uuid,
                database='its usage goes on, and the assignment is not '
                         'active')
