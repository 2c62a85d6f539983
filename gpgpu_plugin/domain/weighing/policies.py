# SPDX-License-Identifier: Apache-2.0
"""The policies by name."""

from __future__ import annotations

from gpgpu_plugin.domain.weighing import foresight
from gpgpu_plugin.domain.weighing import policy

POLICIES: dict[str, type[policy.Policy]] = {
    'pack': foresight.Foresight, 'spread': policy.Spread}
