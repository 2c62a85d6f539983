# SPDX-License-Identifier: Apache-2.0
"""Check that Nova does not assign devices that the plugin offers.

nova-compute itself refuses to start if both would assign a device of its host
(virt.nova_managed_devices). This check knows the variants, but no device.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import os_resource_classes
from oslo_config import cfg

from gpgpu_plugin.cmd.upgrade import nova
from gpgpu_plugin.cmd.upgrade import result
from gpgpu_plugin.domain import variant as rules

_ANY = '*'

_Spec = Mapping[str, object]


def collisions(conf: cfg.ConfigOpts,
               variants: Sequence[rules.Variant]) -> result.Result:
    """Check Nova's own options for devices.

    :param conf: that of Nova
    """
    return result.join(
        [*(_of_host(conf, variants) if nova.is_ours(conf) else ()),
         *_aliases(conf, variants)],
        'Nova assigns no device that the plugin offers')


def _of_host(conf: cfg.ConfigOpts, variants: Sequence[rules.Variant],
             ) -> Iterator[result.Result]:
    yield from _device_specs(conf, variants)
    yield from _mdev_types(conf, variants)
    if conf.update_resources_interval < 0:
        yield result.warning(
            'update_resources_interval is negative, so that nova-compute '
            'does not notice devices of instances that are gone until its '
            'daily comparison: remove the option')


def _device_specs(conf: cfg.ConfigOpts, variants: Sequence[rules.Variant],
                  ) -> Iterator[result.Result]:
    for spec in _objects(conf.pci.device_spec):
        if spec is None:
            yield result.failure(
                '[pci] device_spec is not JSON, so that nova-compute does '
                'not start: correct it')
            continue
        # Nova gives devices of a network to ports, and no GPU has one.
        if 'physical_network' in spec:
            continue
        found = [variant.name for variant in variants
                 if _covers(spec, variant)]
        if found and _ANY not in _ids(spec):
            yield result.failure(
                f'[pci] device_spec covers variant {result.names(found)}, so '
                f'that nova-compute does not start where it finds such '
                f'devices: remove {json.dumps(spec)} from the option, or '
                f'delete the variant')
        elif found:
            yield result.warning(
                f'[pci] device_spec {json.dumps(spec)} does not name the '
                f'product, and may cover variant {result.names(found)}. '
                f'nova-compute does not start if it does: name vendor_id and '
                f'product_id')


def _covers(spec: _Spec, variant: rules.Variant) -> bool:
    vendor, product = _ids(spec)
    return (vendor in (_ANY, variant.vendor)
            and product in (_ANY, variant.device))


def _ids(spec: _Spec) -> tuple[str, str]:
    return (str(spec.get('vendor_id', _ANY)).lower(),
            str(spec.get('product_id', _ANY)).lower())


def _objects(values: Sequence[str]) -> Iterator[_Spec | None]:
    """Yield the objects in values that Nova reads as JSON; None for others."""
    for value in values:
        try:
            parsed = json.loads(value)
        except ValueError:
            yield None
            continue
        for item in parsed if isinstance(parsed, list) else [parsed]:
            yield item if isinstance(item, dict) else None


def _mdev_types(conf: cfg.ConfigOpts, variants: Sequence[rules.Variant],
                ) -> Iterator[result.Result]:
    types = conf.devices.enabled_mdev_types
    if not types:
        return
    of_vgpu = [variant.name for variant in variants
               if variant.resource_class == os_resource_classes.VGPU]
    if of_vgpu:
        yield result.failure(
            f'[devices] enabled_mdev_types makes Nova offer the resource '
            f'class VGPU, which variant {result.names(of_vgpu)} has as '
            f'well: remove the option, or give the variant another class')
    else:
        yield result.warning(
            f'[devices] enabled_mdev_types = {",".join(types)}: nova-compute '
            f'does not start if it finds a GPU of a variant with such a '
            f'type. Remove the option, unless these GPUs have no variant')


def _aliases(conf: cfg.ConfigOpts, variants: Sequence[rules.Variant],
             ) -> Iterator[result.Result]:
    """Yield aliases, by which flavors request devices of ``device_spec``."""
    for alias in _objects(conf.pci.alias):
        if alias is None:
            yield result.failure('[pci] alias is not JSON: correct it')
            continue
        found = [variant.name for variant in variants
                 if _ANY not in _ids(alias) and _covers(alias, variant)]
        if found:
            yield result.warning(
                f'[pci] alias {alias.get("name")} is for variant '
                f'{result.names(found)}: when no instance is left that got '
                f'its GPUs by it, remove it here and from flavors')
