# SPDX-License-Identifier: Apache-2.0
"""Base class and builders of rows, without a conductor."""

import datetime

from oslotest import base

from gpgpu_plugin.db import models
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
            session.add_all(rows)


def host(name, **values):
    """Return the row of a host, whose node has the same name."""
    return models.Host(**{
        'name': name, 'node': name, 'node_uuid': f'node-of-{name}',
        'generation': 1, 'heard_at': 0, 'plugin_version': '1',
        'session_began_at': datetime.datetime(2026, 11, 24), **values})


def device(name, **values):
    """Return the row of a GPU that is available."""
    return models.Device(**{
        'uuid': name, 'stable_id': name, 'address': name[:32],
        'state': 'available', 'pci_function': '{}', 'vendor_id': '',
        'product_id': '', **values})


def variant(name, **values):
    """Return the row of a variant."""
    return variant_db.fill(models.Variant(), rules.check(rules.Variant(
        **{'name': name, 'vendor': '10de', 'device': '1eb8', **values})))


def group(host_row, variant_row, **types):
    """Return the row of a group; ``passthrough=True`` lists a type."""
    return models.Group(
        host_id=host_row.id, variant=variant_row,
        provider_uuid=f'{host_row.name}-{variant_row.name}',
        types=[models.VGPUType(vgpu_type=name, listed=listed, enabled=listed)
               for name, listed in types.items()])
