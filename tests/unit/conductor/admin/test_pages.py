# SPDX-License-Identifier: Apache-2.0
"""Tests of the size of a page, and of lists that have pages."""

from gpgpu_plugin import exception
from gpgpu_plugin.conductor.admin import assignment as assignment_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import pages
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


class SizeTest(base.base.BaseTestCase):

    def test_page_has_a_largest_size(self):
        self.assertEqual(7, pages.size(7))
        self.assertEqual(admin.PAGE_SIZE, pages.size(10 ** 9))

    def test_limit_below_1_is_refused(self):
        for limit in (0, -1):
            exc = self.assertRaises(exception.Invalid, pages.size, limit)
            self.assertIn('above 0', str(exc))


class NumberTest(base.base.BaseTestCase):

    def test_marker_is_a_number(self):
        self.assertEqual(7, pages.number('7', 'an event'))

    def test_other_marker_is_refused(self):
        for marker in ('x', '-1', '1.0', '\u0661', '', str(2 ** 31),
                       '9' * 5000):
            exc = self.assertRaises(
                exception.Invalid, pages.number, marker, 'an event')
            self.assertIn('the number of an event', str(exc))


class PagesTest(vgpu_base.VGPUTestCase):

    def setUp(self):
        super().setUp()
        for name in ('h3', 'h2'):
            hosts.store(self.db, base.scan(
                vgpu_base.GPUS, host=name, node_uuid=f'node-of-{name}'))

    def check(self, list_, expected):
        """Check that pages of each size are the parts of the whole list."""
        everything = list_(1000, None)
        self.assertEqual(expected, len(everything))
        for limit in range(1, expected + 1):
            found, marker = [], None
            while page := list_(limit, marker):
                self.assertLessEqual(len(page), limit)
                found += page
                marker = page[-1].marker
            self.assertEqual(list(everything), found)

    def test_hosts(self):
        self.check(lambda limit, marker: host_admin.list_all(
            self.db, limit, marker), 3)

    def test_groups(self):
        self.check(lambda limit, marker: group_admin.list_all(
            self.db, limit=limit, marker=marker), 3)

    def test_vgpu_types(self):
        number = len(group_admin.list_types(self.db))
        self.assertGreater(number, 6)
        self.check(lambda limit, marker: group_admin.list_types(
            self.db, limit=limit, marker=marker), number)

    def test_vgpu_types_that_are_enabled(self):
        enabled = [info for info in group_admin.list_types(self.db)
                   if info.enabled]
        self.check(lambda limit, marker: group_admin.list_types(
            self.db, limit=limit, marker=marker, only_enabled=True),
            len(enabled))
        # One that was disabled while pages were fetched.
        self.enable('T4-1Q', enabled=False)
        [marker, *_] = [info.marker for info in enabled
                        if info.vgpu_type == 'T4-1Q']
        self.assertNotIn('T4-1Q', {
            info.vgpu_type for info in group_admin.list_types(
                self.db, marker=marker, only_enabled=True)})

    def test_assignments(self):
        for number in range(4):
            self.ask(f'i{number}', Q4=1)

        def ask(assignments):
            return {'h1': [
                claim_obj.Usage(uuid=row.uuid, used=True, reason='it runs')
                for row in assignments]}
        self.check(lambda limit, marker: assignment_admin.list_all(
            self.db, ask, limit=limit, marker=marker), 4)

    def test_unknown_marker_is_not_found(self):
        for list_ in (group_admin.list_all, group_admin.list_types):
            for marker in ('gone', 'h1:T4', 'a:b:c:d'):
                if list_ is group_admin.list_all and marker == 'h1:T4':
                    continue
                self.assertRaises(exception.NotFound, list_, self.db,
                                  marker=marker)
        self.assertRaises(
            exception.NotFound, assignment_admin.list_all, self.db,
            lambda rows: {}, marker='gone')
