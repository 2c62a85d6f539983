# SPDX-License-Identifier: Apache-2.0
"""Environment of alembic: migrations on the connection of db.migration."""

from alembic import context

from gpgpu_plugin.db import migration

# A migration that has ended is not repeated, whatever becomes of the next one.
context.configure(
    connection=context.config.attributes['connection'],
    target_metadata=migration.METADATA, transaction_per_migration=True)

with context.begin_transaction():
    context.run_migrations()
