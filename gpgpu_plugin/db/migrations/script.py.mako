# SPDX-License-Identifier: Apache-2.0
"""${message}"""

import sqlalchemy as sa
from alembic import op

from gpgpu_plugin.db import migration
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
