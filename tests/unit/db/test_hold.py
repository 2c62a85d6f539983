# SPDX-License-Identifier: Apache-2.0
"""Tests of the table of holds."""

import functools

import sqlalchemy as sa
from oslo_db import exception as db_exc

from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from tests.fixtures import rows
from tests.unit.db import base

_K = device_rules.HoldKind


class HoldTest(base.DatabaseTestCase):

    def setUp(self):
        super().setUp()
        self.host = base.host('h1')
        self.add(self.host)
        self.gpu, self.other = (self.device(name) for name in ('g', 'o'))
        self.vf = self.device('v', parent_id=self.gpu.id)

    def device(self, name, **values):
        row = base.device(name, host_id=self.host.id, **values)
        self.add(row)
        return row

    def hold(self, device, kind):
        self.db.write(functools.partial(
            rows.hold, device_id=device.id, kind=kind, reason='r',
            actor='a'))

    def found(self, kinds):
        with self.db.reader() as session:
            return set(session.scalars(sa.select(tables.DEVICES.c.uuid).where(
                hold_db.is_held(kinds))))

    def test_hold_of_a_gpu_holds_its_vfs(self):
        self.hold(self.gpu, _K.DISABLED)
        self.assertEqual({'g', 'v'}, self.found([_K.DISABLED]))
        self.assertEqual(set(), self.found([_K.RETIRED]))

    def test_row_has_each_kind_once_and_each_device_too(self):
        for kind in (_K.DISABLED, _K.FAILED):
            self.hold(self.gpu, kind)
        self.hold(self.vf, _K.FAILED)
        with self.db.reader() as session:
            found = [rows.device(session, name).holds for name in 'gvo']
        self.assertEqual([{'disabled', 'failed'}] * 2 + [set()], found)

    def test_hold_of_a_vf_holds_nothing_else(self):
        self.hold(self.vf, _K.FAILED)
        self.assertEqual({'v'}, self.found(_K))

    def test_device_has_a_kind_once(self):
        self.hold(self.gpu, _K.FAILED)
        with self.db.reader() as session:
            before = host_rows.load_one(session, self.host)
        gpu = before.by_id[self.gpu.id]
        self.assertIs(before, before.hold(gpu, _K.FAILED, 'again'))
        self.assertRaises(
            db_exc.DBDuplicateEntry, self.hold, self.gpu, _K.FAILED)
