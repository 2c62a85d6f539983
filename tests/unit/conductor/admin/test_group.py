#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Tests of how operators list and change groups."""



from gpgpu_plugin import exception
from gpgpu_plugin.conductor.admin import group as group_admin
from tests.unit.conductor import base


class GroupTest(base.ConductorTestCase):

    def test_group(self):
        self.boot(3)
        detail = group_admin.set_(
            self.db, 'h1', 'H100', 'breadth_first')
        self.assertEqual(
            ('breadth_first', 8, 0, 5, 3),
            (detail.allocation_policy, detail.total, detail.reserved,
             detail.remaining, detail.assigned))
        self.assertRaises(exception.Invalid, group_admin.set_, self.db,
                          'h1', 'H100', 'random')
        self.assertRaises(exception.NotFound, group_admin.set_, self.db,
                          'h1', 'L4', 'depth_first')
