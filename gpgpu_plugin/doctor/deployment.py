# SPDX-License-Identifier: Apache-2.0
"""Drifts between the conductor's hosts and classes and those of Nova."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator

from gpgpu_plugin.doctor import drift
from gpgpu_plugin.doctor import view
from gpgpu_plugin.domain import naming


def services(hosts: Iterable[str],
             computes: Collection[str]) -> Iterator[drift.Drift]:
    """Yield hosts of which Nova has no nova-compute.

    :param hosts: those of the conductor
    :param computes: hosts of Nova's nova-compute services
    """
    for host in hosts:
        if host not in computes:
            yield drift.of(
                'host_without_service', host, host,
                conductor='it has the host',
                nova='it has no nova-compute there')


def flavors(found: Iterable[view.Flavor],
            resource_classes: Collection[str]) -> Iterator[drift.Drift]:
    """Yield flavors that request a class of the plugin that does not exist.

    :param resource_classes: of all variants and their types
    """
    for flavor in found:
        for name in flavor.resource_classes:
            if (naming.is_reserved_class(name)
                    and name not in resource_classes):
                yield drift.of(
                    'flavor_of_unknown_class', None,
                    f'{flavor.name} {name}', nova=f'it requests {name}',
                    conductor='no variant has this class')
