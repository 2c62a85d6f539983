#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
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
