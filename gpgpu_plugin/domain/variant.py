# SPDX-License-Identifier: Apache-2.0
"""Variants: names for devices with certain PCI ids."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

from gpgpu_plugin import exception
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.domain.allocation import request

TYPES = ('gpu',)

_OPTIONAL = ('subsystem_vendor', 'subsystem', 'revision')
# MiB; ten times what one GPU has today.
_LARGEST_MEMORY = 4 * 1024 ** 2
_IDS = ('vendor', 'device', *_OPTIONAL)

IDENTITY = (*_IDS, 'type', 'resource_class')
"""Fields that say which devices a variant has, and what instances of them
were allocated. They cannot change while one is assigned."""


class VariantStatus(enum.StrEnum):
    """Progress of hosts with the present values of a variant.

    A host takes them over in its next transaction. A variant that is being
    deleted cannot be claimed, and stays until no device of it is assigned.
    """

    READY = 'ready'
    APPLYING = 'applying'
    DELETING = 'deleting'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """Name for all devices with the given ids; None matches any.

    :ivar resource_class: resource class of the whole GPU
    :ivar traits: traits of its resource providers beside the plugin's own
    :ivar mix_policy: rule for which vGPUs may share a GPU, a
        domain.vgpu.VGPUMixPolicy
    :ivar cleaning_policy: what its whole GPUs must pass between two tenants:
        a name or steps, see domain.cleaning.check_policy
    :ivar memory_mib: MiB of memory of a whole GPU, all of which a scrub must
        verify; None: unknown
    :ivar unsupported_ok: whether hardware that no guest can use as a whole is
        offered all the same (domain.gpu)
    :ivar allocation_policy: of groups that have none of their own
    :ivar link_partitions: table of groups that have none of their own
        (domain.fabric), as JSON; None: nothing is known of links
    """

    name: str
    vendor: str
    device: str
    subsystem_vendor: str | None = None
    subsystem: str | None = None
    revision: str | None = None
    type: str = 'gpu'
    resource_class: str = ''
    traits: tuple[str, ...] = ()
    mix_policy: str = vgpu.VGPUMixPolicy.SAME_TYPE.value
    cleaning_policy: str = cleaning.DEFAULT
    memory_mib: int | None = None
    unsupported_ok: bool = False
    allocation_policy: str = request.AllocationPolicy.DEPTH_FIRST.value
    link_partitions: str | None = None

    @property
    def specificity(self) -> int:
        """Return the number of optional ids that the variant names."""
        return sum(getattr(self, name) is not None for name in _OPTIONAL)

    def class_of(self, vgpu_type: str) -> str:
        """Return the resource class of one of the variant's types."""
        if vgpu_type == naming.PASSTHROUGH:
            return self.resource_class
        return naming.resource_class(self.name, vgpu_type)

    def matches(self, function: pci.PCIFunction) -> bool:
        """Return whether the function has all ids that the variant names.

        An unknown id of the function never matches an id that the variant
        names.
        """
        return all(
            getattr(self, name) in (None, getattr(function, name))
            for name in _IDS)


def check(variant: Variant) -> Variant:
    """Return the variant with normalised ids and its resource class.

    :raises Invalid: the message names the field and the expected value
    """
    naming.check_variant_name(variant.name)
    if variant.type not in TYPES:
        raise exception.Invalid(
            field='variant type', value=variant.type,
            expected='one of ' + ', '.join(TYPES))
    if variant.subsystem and not variant.subsystem_vendor:
        raise exception.Invalid(
            field='subsystem', value=variant.subsystem,
            expected='a subsystem vendor, too: each vendor has subsystem ids '
                     'of its own')
    if variant.mix_policy not in list(vgpu.VGPUMixPolicy):
        raise exception.Invalid(
            field='mix policy', value=variant.mix_policy,
            expected='one of ' + ', '.join(vgpu.VGPUMixPolicy))
    request.check_allocation_policy(variant.allocation_policy)
    cleaning.check_policy(variant.cleaning_policy)
    if variant.memory_mib is not None and not (
            0 < variant.memory_mib <= _LARGEST_MEMORY):
        raise exception.Invalid(
            field='memory in MiB', value=variant.memory_mib,
            expected=f'that of a whole GPU, 1 to {_LARGEST_MEMORY}')
    ids = {
        name: pci.normalize_id(name.replace('_', ' '), value,
                               2 if name == 'revision' else 4)
        for name in _IDS if (value := getattr(variant, name)) is not None}
    return dataclasses.replace(
        variant, **ids,  # type: ignore[arg-type]
        link_partitions=None if variant.link_partitions is None
        else fabric.normalize_link_table(variant.link_partitions),
        resource_class=naming.check_resource_class(
            variant.resource_class or naming.resource_class(variant.name)),
        traits=tuple(sorted({
            naming.check_trait(trait) for trait in variant.traits})))


def changed(before: Variant, after: Variant) -> tuple[str, ...]:
    """Return the names of the fields in which two variants differ."""
    return tuple(
        field.name for field in dataclasses.fields(Variant)
        if getattr(before, field.name) != getattr(after, field.name))


def match(variants: Iterable[Variant],
          function: pci.PCIFunction) -> Variant | None:
    """Return the most specific variant of a function; None if none matches.

    A function that cannot be trusted (``fault``) has no variant.

    :raises VariantTie: two match equally well
    """
    if function.fault:
        return None
    found = sorted(
        (variant for variant in variants if variant.matches(function)),
        key=lambda variant: variant.specificity, reverse=True)
    if not found:
        return None
    if len(found) > 1 and found[0].specificity == found[1].specificity:
        raise exception.VariantTie(
            kind='device', reason='', first=found[0].name,
            second=found[1].name, name=function.id)
    return found[0]


def check_beside(variant: Variant, others: Iterable[Variant]) -> None:
    """Refuse a variant that conflicts with the others.

    :raises Conflict: both have the same name in Placement or the same resource
        class, or a device could match both equally well
    """
    others = list(others)
    same = collides(variant.name, [other.name for other in others])
    reasons = []
    if same is not None:
        reasons.append('it exists already, and "variant set" changes it'
                       if same == variant.name else
                       f'variant {same} has the same name in Placement')
    for other in others:
        if overlaps(variant, other):
            reasons.append(
                f'it ties with variant {other.name}: a device can match both '
                f'equally well; name more ids in one')
        if other.resource_class == variant.resource_class:
            reasons.append(f'variant {other.name} has the resource class '
                           f'{other.resource_class} already')
    if reasons:
        raise exception.Conflict(
            kind='variant', name=variant.name, reason=reasons[0])


def overlaps(one: Variant, other: Variant) -> bool:
    """Return whether some device would match both equally well."""
    return one.specificity == other.specificity and all(
        None in (mine, theirs) or mine == theirs
        for mine, theirs in (
            (getattr(one, name), getattr(other, name)) for name in _IDS))


def collides(name: str, others: Iterable[str]) -> str | None:
    """Return which of the names equals this name in Placement."""
    normalized = naming.normalize(name)
    return next((other for other in others
                 if naming.normalize(other) == normalized), None)
