# SPDX-License-Identifier: Apache-2.0
"""Check of reports: what no host can have is not stored.

A host may send anything, and what it sends is read again in transactions and
by schedulers that decide about other hosts.
"""

from __future__ import annotations

import dataclasses

from gpgpu_plugin import exception
from gpgpu_plugin.domain.vgpu import capability
from gpgpu_plugin.domain.vgpu import vgpu_type
from gpgpu_plugin.objects import report as objects

_MOST_FUNCTIONS = 4096
"""Four times as many as 16 GPUs with 64 VFs each."""

_MOST_NUMA_NODES = 64
"""Twice as many as the largest machines have sockets. Schedulers look at each
node, and at sets of nodes."""

_MOST_TYPES = 128
"""vGPU types of one function; drivers list several dozen."""


def checked(scan: objects.HostReport) -> objects.HostReport:
    """Return a scan without vGPU types that no GPU has.

    They come from a driver's text, and the host's other devices are not
    concerned. ``problems`` says what is left out. All else comes from the
    kernel, which reports no such numbers.

    :raises Invalid: another number is impossible, or a function is repeated
    """
    _check(scan)
    addresses = {function.id: function.address for function in scan.functions}
    capabilities, problems = {}, list[str]()
    for stable_id, found in scan.vgpu_capabilities.items():
        reasons = _reasons(found)
        if reasons:
            found = dataclasses.replace(found, types=tuple(
                known for known in found.types or ()
                if known.name not in reasons))
            problems += [
                f'{addresses.get(stable_id, stable_id)}: vGPU type '
                f'{name[:vgpu_type.LONGEST_NAME]} is left out: {reason}'
                for name, reason in reasons.items()]
        capabilities[stable_id] = found
    if not problems:
        return scan
    return dataclasses.replace(
        scan, vgpu_capabilities=capabilities,
        problems=(*scan.problems, *problems))


def _reasons(found: capability.VGPUCapability) -> dict[str, str]:
    """Return why types are left out, by name."""
    types = found.types or ()
    reasons = {known.name: f'the driver lists more than {_MOST_TYPES} types'
               for known in types[_MOST_TYPES:]}
    for known in types:
        reason = vgpu_type.implausible(known)
        if reason is not None:
            reasons[known.name] = reason
    return reasons


def _check(scan: objects.HostReport) -> None:
    if len(scan.functions) > _MOST_FUNCTIONS:
        raise exception.Invalid(
            field='report', value=f'{len(scan.functions)} functions',
            expected=f'{_MOST_FUNCTIONS} at most')
    nodes = {function.numa_node for function in scan.functions}
    if len(nodes) > _MOST_NUMA_NODES:
        raise exception.Invalid(
            field='report', value=f'{len(nodes)} NUMA nodes',
            expected=f'{_MOST_NUMA_NODES} at most')
    seen: set[str] = set()
    for function in scan.functions:
        if function.id in seen:
            raise exception.Invalid(
                field='report', value=function.id,
                expected='each stable id once')
        seen.add(function.id)
