# SPDX-License-Identifier: Apache-2.0
"""Tests of how operators list and change devices."""

import collections
import dataclasses

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


class DeviceTest(base.ConductorTestCase):

    def test_filters(self):
        self.boot(3)
        for filters, count in (
                ({}, 8), ({'state': 'assigned'}, 3), ({'used_by': 'i1'}, 3),
                ({'variant': 'H100'}, 8),
                ({'host': 'h1', 'state': 'available'}, 5)):
            self.assertEqual(count, len(
                device_admin.list_all(self.db, **filters)), filters)
        exc = self.assertRaises(
            exception.Invalid, device_admin.list_all, self.db, state='free')
        self.assertIn('available', str(exc))
        exc = self.assertRaises(
            exception.Invalid, device_admin.list_all, self.db, type='tpu')
        self.assertIn('one of gpu', str(exc))
        for unknown in ({'host': 'h9'}, {'variant': 'L4'}):
            self.assertRaises(
                exception.NotFound, device_admin.list_all, self.db, **unknown)

    def test_project_is_that_of_the_instance(self):
        claims.claim(self.db, dataclasses.replace(
            self.request(2), project_id='p1'), lease=60)
        self.assertEqual(
            {(None, None): 6, ('i1', 'p1'): 2}, collections.Counter(
                (device.used_by, device.project_id)
                for device in device_admin.list_all(self.db)))

    def test_disabled_device(self):
        device = device_admin.list_all(self.db)[0]
        device_admin.set_(self.db, device.uuid, 'op', enabled=False)
        self.assertEqual('disabled', device_admin.show(
            self.db, device.uuid).shown_state)
        [group] = group_admin.list_all(self.db)
        self.assertEqual((1, 7), (group.reserved, group.remaining))


class MdevRowTest(vgpu_base.VGPUTestCase):

    def test_mdev_row_is_neither_enabled_nor_disabled(self):
        claim = self.ask(Q4=1)
        exc = self.assertRaises(
            exception.Conflict, device_admin.set_, self.db,
            claim.assignments[0].device_uuid, 'op', enabled=False)
        self.assertIn('name the GPU 0000:00:00.0', str(exc))
