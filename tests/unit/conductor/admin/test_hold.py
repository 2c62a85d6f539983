# SPDX-License-Identifier: Apache-2.0
"""Tests of holds as operators list and set them."""

from gpgpu_plugin import exception
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.domain import device as device_rules
from tests.fixtures import hosts
from tests.unit.conductor import base


class HoldTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.devices = device_admin.list_all(self.db)

    def test_pages_together_are_the_list_in_two_statements_each(self):
        for device in self.devices[:5]:
            device_admin.add_hold(self.db, device.uuid, 'disabled', 'why',
                                  'op')
        everything = device_admin.list_holds(self.db)
        self.assertEqual([device.uuid for device in self.devices[:5]],
                         [found.device for found in everything])
        found, marker = [], None
        while True:
            with self.statements() as statements:
                page = device_admin.list_holds(self.db, limit=2, marker=marker)
            self.assertLessEqual(len(statements), 2)
            if not page:
                break
            found += page
            marker = page[-1].marker
        self.assertEqual(list(everything), found)

    def test_refusal_removes_nothing(self):
        [device, *_] = self.devices
        device_admin.add_hold(self.db, device.uuid, 'disabled', None, 'op')
        self.assertRaises(
            exception.Conflict, device_admin.remove_hold, self.db, device.uuid,
            ['disabled', 'failed'], 'op')
        self.assertEqual(1, len(device_admin.list_holds(self.db)))

    def test_refusal_of_one_kind_removes_none_of_the_others(self):
        gpu = base.replace(0, used_by='vf', sriov_numvfs=1, sriov_totalvfs=1)
        hosts.store(self.db, base.scan((gpu, base.function(
            0, id=f'{gpu.id}/vf0', dsn=None, address='0000:00:00.1',
            pf=gpu.id, vf_index=0))))
        [vf] = [device for device in device_admin.list_all(self.db)
                if device.parent]
        device_admin.add_hold(self.db, vf.parent, 'disabled', None, 'op')
        device_admin.add_hold(self.db, vf.uuid, 'quarantined', 'why', 'op')
        self.assertRaises(
            exception.Conflict, device_admin.remove_hold, self.db, vf.uuid,
            ['quarantined', 'disabled'], 'op')
        self.assertEqual({'disabled', 'quarantined'}, {
            found.kind for found in device_admin.list_holds(self.db)})

    def test_operators_do_not_set_what_conductors_find_out(self):
        for kind in (device_rules.HoldKind.FAILED,
                     device_rules.HoldKind.IDENTITY_CHANGED, 'broken'):
            exc = self.assertRaises(
                exception.Invalid, device_admin.add_hold, self.db,
                self.devices[0].uuid, kind, 'why', 'op')
            self.assertIn('quarantined, disabled, retired', str(exc))
        self.assertRaises(
            exception.Invalid, device_admin.remove_hold, self.db,
            self.devices[0].uuid, ['broken'], 'op')
        self.assertRaises(exception.Invalid, device_admin.list_holds, self.db,
                          kind='broken')
