# SPDX-License-Identifier: Apache-2.0
"""The policies of the plugin, and published ones, by name."""

from __future__ import annotations

from bench.simulation import fragmentation
from bench.simulation import published
from gpgpu_plugin.domain import weighing

_PUBLISHED: dict[str, type[weighing.Policy]] = {
    'best-fit': published.BestFit, 'dot-product': published.DotProduct,
    'fgd': fragmentation.FragmentationGradientDescent,
    'packing': published.Packing}
NAMES = tuple(sorted([*weighing.POLICIES, *_PUBLISHED, 'random']))
_OTHER_NAMES = {'ours': 'pack'}


def make(name: str, seed: int = 0) -> weighing.Policy | None:
    """Return a policy by its name, in any case; None: there is none.

    :param seed: of the policy that draws
    """
    lower = name.lower()
    key = _OTHER_NAMES.get(lower, lower)
    if key == 'random':
        return published.Random(seed)
    made = {**weighing.POLICIES, **_PUBLISHED}.get(key)
    return made() if made else None
