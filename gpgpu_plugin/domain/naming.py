# SPDX-License-Identifier: Apache-2.0
"""Names of resource classes, traits and providers, and inventories.

Resource classes and traits follow the normalisation rules of
os-resource-classes and os-traits; provider UUIDs are derived, so that a
compute host that lost its state finds its providers again.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Container

import os_resource_classes
import os_traits

from gpgpu_plugin import exception

PASSTHROUGH = 'passthrough'
"""Name of the vGPU type that is the whole GPU."""

TRAIT_GPU = 'CUSTOM_GPU'
TRAIT_OWNER = os_traits.OWNER_NOVA
TRAIT_GPU_HOST = 'CUSTOM_GPGPU_HOST'
"""Trait of the root provider of a host with groups of GPUs. The trait of a
variant begins with CUSTOM_GPU_, so it is never this one."""
GPU_HOST_KEY = f'trait:{TRAIT_GPU_HOST}'
"""Key with which a flavor, an image or an aggregate requires that trait."""

AGGREGATE_MARK = 'gpgpu:managed'
"""Metadata of the host aggregate whose hosts the conductor adds and removes;
its value is ``true``."""

# Placement allows 255 characters for classes and traits; the rest of the
# name (CUSTOM_VGPU_, a type) must fit beside the variant.
_VARIANT_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]{0,63}')
_PROVIDER_NAMESPACE = uuid.UUID('7d0c4a4e-5d2f-5c63-9a39-0f6f2c3c8a11')


def check_variant_name(name: str) -> str:
    """Return the name.

    :raises Invalid: empty, longer than 64 characters, or with other
        characters than letters, digits, ``.``, ``_`` and ``-``
    """
    if not _VARIANT_NAME.fullmatch(name):
        raise exception.Invalid(
            field='variant name', value=name,
            expected='1 to 64 letters, digits, ".", "_" or "-", beginning '
                     'with a letter or digit')
    return name


def normalize(name: str) -> str:
    """Return the form in which equal names are equal in Placement."""
    normalized: str = os_resource_classes.normalize_name(name)
    return normalized.removeprefix('CUSTOM_')


def resource_class(variant: str, vgpu_type: str = PASSTHROUGH) -> str:
    """Return the default resource class of a variant's type."""
    if vgpu_type == PASSTHROUGH:
        return f'CUSTOM_GPU_{normalize(variant)}'
    return f'CUSTOM_VGPU_{normalize(variant)}_{normalize(vgpu_type)}'


NOVA_CLASSES = frozenset({'PGPU', 'VGPU'})
"""Classes of Placement itself that variants may have."""


def is_reserved_class(name: str) -> bool:
    """Return whether only the plugin uses such a class, existing or not."""
    return name.startswith(('CUSTOM_GPU_', 'CUSTOM_VGPU_'))


def is_own_class(name: str, known: Container[str]) -> bool:
    """Return whether a class is the plugin's.

    :param known: classes that variants have; operators may choose any name.
        Classes of variants that were deleted are reserved ones
    """
    return name in known or is_reserved_class(name)


def check_resource_class(name: str) -> str:
    """Return the class name.

    :raises Invalid: neither PGPU, VGPU nor a well-formed CUSTOM_ class
    """
    if name not in NOVA_CLASSES and not re.fullmatch(
            r'CUSTOM_[A-Z0-9_]{1,248}', name):
        raise exception.Invalid(
            field='resource class', value=name,
            expected='PGPU, VGPU or CUSTOM_ and upper-case letters, digits '
                     'and "_"')
    return name


def check_trait(name: str) -> str:
    """Return the trait name.

    :raises Invalid: neither a trait of os-traits nor a CUSTOM_ one
    """
    if name not in os_traits.get_traits() and not re.fullmatch(
            r'CUSTOM_[A-Z0-9_]{1,248}', name):
        raise exception.Invalid(
            field='trait', value=name,
            expected='a name that os-traits knows, such as '
                     'HW_GPU_API_VULKAN, or CUSTOM_ and upper-case letters, '
                     'digits and "_"')
    return name


def traits(variant: str, extra: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the traits of the resource provider of a variant's group."""
    return frozenset(
        {TRAIT_GPU, TRAIT_OWNER, f'CUSTOM_GPU_{normalize(variant)}', *extra})


def provider_name(node: str, variant: str) -> str:
    """Return the name of a group's resource provider; it is only shown."""
    return f'{node}_gpu_{normalize(variant)}'


def provider_uuid(node_uuid: str, variant: str) -> str:
    """Return the UUID of a group's resource provider, equal on every start."""
    return str(uuid.uuid5(
        _PROVIDER_NAMESPACE, f'{node_uuid}/{normalize(variant)}'))


# -- Inventory that Placement should have of a group's resource class.


@dataclasses.dataclass(frozen=True, kw_only=True)
class DesiredInventory:
    """Inventory record of one resource class, in Placement's words."""

    total: int
    reserved: int
    max_unit: int


def desired_inventory(*, max_instances: int, available: int, allocated: int,
                      largest_allocation: int = 0) -> DesiredInventory | None:
    """Return the inventory with which Placement offers what is available.

    Placement offers total - reserved - used. Capacity is withdrawn through
    ``reserved`` alone: a total or max_unit below a live allocation would
    break every other build and delete on the host.

    :param max_instances: units that the group's GPUs can have, in any state
        and including missing GPUs
    :param available: units that a claim could take now
    :param allocated: units assigned under a Placement allocation on the
        provider
    :param largest_allocation: units of the largest live allocation
    :returns: None for a type without GPUs and allocations: 0 is not a legal
        total
    """
    total = max(max_instances, available + allocated, largest_allocation)
    if total == 0:
        return None
    return DesiredInventory(total=total, max_unit=total,
                            reserved=max(0, total - available - allocated))
