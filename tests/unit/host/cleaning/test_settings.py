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

from tests.unit.host.cleaning import card


class SettingsTest(card.CardCase):

    def test_configuration_of_before_the_guest_passes(self):
        self.use()
        _, results = self.clean()
        self.assertEqual({'functions': 1}, results['settings'].facts)

    def test_other_configuration_fails(self):
        self.use()
        path = f'{self.root}/bus/pci/devices/{self.address}/config'
        with open(path, 'r+b') as file:
            file.seek(2)
            file.write(b'\x39\x23')
        verdict, results = self.clean()
        self.assertEqual('failed', results['settings'].outcome)
        self.assertIn('differs from its baseline: device was',
                      verdict.evidence)
