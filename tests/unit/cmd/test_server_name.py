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
"""Tests of names of servers that need no Nova."""

from gpgpu_plugin.cmd import server_name
from tests.unit.cmd import base
from tests.unit.cmd import test_imports


class ServerNameTest(base.CommandTestCase):

    def test_uuid_in_any_form_needs_no_nova(self):
        def connect(cloud):
            raise AssertionError('Nova was asked')
        self.claim()
        for text in (base.INSTANCE, base.INSTANCE.replace('-', '').upper()):
            self.assertEqual(1, len(self.json(
                'instance', 'show', text, connect=connect)))

    def test_name_that_is_left_out_is_none(self):
        self.assertIsNone(server_name.optional(None, None))

    def test_uuid_loads_no_slow_library(self):
        self.assertNotIn('openstack', test_imports.imported(
            'from gpgpu_plugin.cmd import server_name\n'
            f'server_name.uuid_of(None, {base.INSTANCE!r})'))
