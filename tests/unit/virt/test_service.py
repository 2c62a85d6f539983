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
"""Start of nova-compute: which Nova, and when it is refused."""

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.virt import service


class NovaVersionTest(base.BaseTestCase):

    def test_other_nova_is_refused_by_name(self):
        service.check_nova_version('34.0.1')
        for found in ('33.0.0', '35.0.0', '3.4'):
            exc = self.assertRaises(
                exception.ConfigInvalid, service.check_nova_version, found)
            self.assertIn(found, str(exc))
            self.assertIn('34', str(exc))
