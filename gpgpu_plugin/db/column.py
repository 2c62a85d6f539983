# SPDX-License-Identifier: Apache-2.0
"""Metadata, types and naming of all tables."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

CONSTRAINTS = {
    'ix': 'ix_%(table_name)s_%(column_0_N_name)s',
    'uq': 'uq_%(table_name)s_%(column_0_N_name)s',
    'ck': 'ck_%(table_name)s_%(constraint_name)s',
    'fk': 'fk_%(table_name)s_%(column_0_N_name)s',
    'pk': 'pk_%(table_name)s',
}


METADATA = sa.MetaData(naming_convention=CONSTRAINTS)

NAME = sa.String(255)
UUID = sa.String(36)
PCI_ID = sa.String(4)
# TEXT of MariaDB has 64 KiB.
LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')
