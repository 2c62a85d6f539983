# SPDX-License-Identifier: Apache-2.0
"""Base class and builders of rows, without a conductor."""

import datetime
import types

import sqlalchemy as sa
from oslotest import base

from gpgpu_plugin.db import tables
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import variant as rules
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database


class DatabaseTestCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.db = self.useFixture(database.Database(self.conf)).db

    def add(self, *rows):
        with self.db.writer() as session:
            for row in rows:
                row.insert(session)



class Row(types.SimpleNamespace):
    """A row to be stored, with its columns as attributes.

    A column may be another row, which is stored first: the column is its id.
    """

    def __init__(self, table, **values):
        super().__init__(**values)
        self.table, self.children = table, ()

    def insert(self, session):
        """Store the row, then its children, and read its id."""
        self.id = session.execute(sa.insert(self.table).values({
            name: value.id if isinstance(value, (Row, Variant)) else value
            for name, value in vars(self).items()
            if name in self.table.c})).inserted_primary_key[0]
        for child in self.children:
            child.insert(session)


class Variant(types.SimpleNamespace):
    """A variant to be stored."""

    def insert(self, session):
        variant_db.insert(session, self.value, 0)
        self.id = variant_db.get(session, self.value.name).id


def host(name, **values):
    """Return the row of a host, whose node has the same name."""
    return Row(tables.HOSTS, **{
        'name': name, 'node': name, 'node_uuid': f'node-of-{name}',
        'generation': 1, 'heard_at': 0, 'plugin_version': '1',
        'session_began_at': datetime.datetime(2026, 11, 24), **values})


def device(name, **values):
    """Return the row of a GPU that is available."""
    return Row(tables.DEVICES, **{
        'uuid': name, 'stable_id': name, 'address': name[:32],
        'state': 'available', 'pci_function': '{}', 'vendor_id': '',
        'product_id': '', **values})


def variant(name, **values):
    """Return a variant, as the ``value`` of an object."""
    return Variant(value=rules.check(rules.Variant(
        **{'name': name, 'vendor': '10de', 'device': '1eb8', **values})))


def group(host_row, variant_row, **types):
    """Return the row of a group; ``passthrough=True`` lists a type."""
    return with_types(host_row, variant_row, *(
        {'vgpu_type': name, 'listed': listed, 'enabled': listed}
        for name, listed in types.items()))


def with_types(host_row, variant_row, *types):
    """Return the row of a group whose types have some columns."""
    row = Row(
        tables.GROUPS, host_id=host_row, variant_id=variant_row,
        provider_uuid=f'{host_row.name}-{variant_row.value.name}')
    row.children = [Row(tables.TYPES, gpu_group_id=row, **columns)
                    for columns in types]
    return row
