# SPDX-License-Identifier: Apache-2.0
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import gauges
from gpgpu_plugin.db import host as host_db
from tests.fixtures import rows
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base
from tests.unit.db import base as db_base


class GaugesCase(base.ConductorTestCase):

    def read(self, *, per_host=True, **kwargs):
        with self.db.reader() as session:
            return gauges.read(session, per_host=per_host, **kwargs)

    def devices(self, **kwargs):
        return {row[:4]: row.number for row in self.read(**kwargs).devices}


class CountTest(GaugesCase):

    def test_devices_are_counted_by_what_operators_see(self):
        self.claim(2)
        free = [device.uuid for device in device_admin.list_all(self.db)
                if device.state == 'available']
        device_admin.set_(self.db, free[0], 'op', enabled=False)
        self.report_second_host()
        self.assertEqual({
            ('h1', 'H100', 'provisioning', True): 2,
            ('h1', 'H100', 'disabled', False): 1,
            ('h1', 'H100', 'available', True): 5,
            ('h2', 'H100', 'available', True): 8}, self.devices())

    def test_without_hosts_the_database_adds_them_up(self):
        self.report_second_host()
        self.claim(2)
        self.assertEqual({
            (None, 'H100', 'provisioning', True): 2,
            (None, 'H100', 'available', True): 14},
            self.devices(per_host=False))
        self.assertEqual(
            [(None, 'H100', 'passthrough', 16, 14)],
            self.read(per_host=False).capacities)

    def test_host_has_the_time_at_which_it_was_heard(self):
        with self.db.writer() as session:
            rows.change_host(session, 'h1', heard_at=1234.5)
        self.report_second_host()
        with self.db.reader() as session:
            now = host_db.get(session, 'h2').heard_at
        self.assertEqual({('h1', 1234.5, False), ('h2', now, False)},
                         set(self.read().hosts))
        self.assertEqual({('h1', 1234.5, True), ('h2', now, False)},
                         set(self.read(silent_after=900).hosts))


class LeftOutTest(GaugesCase):

    def test_device_without_group_has_no_variant(self):
        self.report_second_host([base.function(0, device='ffff')])
        self.assertEqual(
            1, self.devices()['h2', None, 'unmanaged', True])

    def test_mdev_row_is_not_counted(self):
        with self.db.writer() as session:
            host = host_db.get(session, 'h1')
            db_base.device('m', host_id=host.id, kind='mdev').insert(session)
        self.assertEqual(8, sum(self.devices().values()))

    def test_counts_are_those_of_the_list_of_hosts(self):
        self.claim(3)
        self.clean_all()
        self.report_second_host()
        found = {}
        for row in self.read().devices:
            states = found.setdefault(row.host, {})
            states[row.state] = states.get(row.state, 0) + row.number
        self.assertEqual({host.host: host.devices
                          for host in host_admin.list_all(self.db)}, found)

    def test_host_that_was_deleted_is_left_out(self):
        self.report_second_host()
        host_admin.delete(self.db, 'h2', force=True)
        found = self.read()
        self.assertEqual({'h1'}, {row.host for row in found.devices})
        self.assertEqual({'h1'}, {row.host for row in found.capacities})
        self.assertEqual(['h1'], [host.name for host in found.hosts])

    def test_notifications_that_wait_are_counted(self):
        self.assertEqual(0, self.read().notifications)
        self.db.publish_as('gpgpu-conductor:c1')
        self.claim(3)
        self.assertEqual(3, self.read().notifications)

    def test_statements_do_not_grow_with_devices_and_hosts(self):
        for _ in range(2):
            for per_host in (True, False):
                with self.statements() as found:
                    self.read(per_host=per_host)
                self.assertEqual(4, len([
                    text for text in found if text != 'BEGIN']), found)
            self.report_second_host()


class VGPUTest(vgpu_base.VGPUTestCase):

    def test_type_that_is_disabled_has_no_capacity_to_show(self):
        with self.db.reader() as session:
            shown = {row.vgpu_type for row in gauges.read(
                session, per_host=True).capacities}
        enabled = {info.vgpu_type for info in group.list_types(
            self.db, only_enabled=True)}
        everything = {info.vgpu_type for info in group.list_types(
            self.db)}
        self.assertEqual(enabled, shown)
        self.assertLess(shown, everything)
