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
"""Rows of ``vgpu_types``."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from gpgpu_plugin.db import models


def listed(session: orm.Session) -> list[tuple[str, str]]:
    """Return the types whose resource class Placement may know.

    :returns: name of the variant and of the type, each pair once
    """
    return [(variant, vgpu_type) for variant, vgpu_type in session.execute(
        sa.select(models.Variant.name, models.VGPUType.vgpu_type)
        .join(models.Group, models.Group.variant_id == models.Variant.id)
        .join(models.VGPUType,
              models.VGPUType.gpu_group_id == models.Group.id)
        .where(models.VGPUType.listed).distinct())]
