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
"""``host``."""

from tests.unit.cmd import base
from tests.unit.conductor import base as machine


class HostTest(base.CommandTestCase):

    def test_list_and_show(self):
        [row] = self.json('host', 'list')
        self.assertEqual(
            ('h1', 'h1', machine.NODE, {'available': 8}),
            (row['Host'], row['Node'], row['Node UUID'], row['Devices']))
        self.report(problems=('0000:07:00.0: config cannot be read',))
        shown = self.json('host', 'show', 'h1')
        self.assertEqual(['0000:07:00.0: config cannot be read'],
                         shown['Problems'])

    def test_empty(self):
        self.done('host', 'delete', 'h1')
        self.assertEqual([], self.json('host', 'list'))

    def test_unknown(self):
        for verb in ('show', 'delete'):
            self.assertEqual('gpgpu-manage: host h9 does not exist\n',
                             self.refused('host', verb, 'h9'))

    def test_delete_while_in_use(self):
        self.claim()
        err = self.refused('host', 'delete', 'h1')
        self.assertIn(f'instance {base.INSTANCE} holds a device', err)
        self.assertEqual(1, len(self.json('host', 'list')))
