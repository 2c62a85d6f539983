# SPDX-License-Identifier: Apache-2.0
"""The policies by name."""

from __future__ import annotations

from gpgpu_plugin.domain.weighing import foresight
from gpgpu_plugin.domain.weighing import fragmentation
from gpgpu_plugin.domain.weighing import policy

NAMES = ('best-fit', 'dot-product', 'fgd', 'pack', 'packing', 'random',
         'spread')
_OTHER_NAMES = {'ours': 'pack'}


def make(name: str, seed: int = 0) -> policy.Policy | None:
    """Return a policy by its name, in any case; None: there is none.

    :param seed: of the policy that draws
    """
    lower = name.lower()
    key = _OTHER_NAMES.get(lower, lower)
    if key == 'random':
        return policy.Random(seed)
    made: dict[str, type[policy.Policy]] = {
        'best-fit': policy.BestFit, 'dot-product': policy.DotProduct,
        'fgd': fragmentation.FragmentationGradientDescent,
        'pack': foresight.Foresight, 'packing': policy.Packing,
        'spread': policy.Spread}
    return made[key]() if key in made else None
