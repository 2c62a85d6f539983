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
"""nova-api accepts what is enforced and names it when something else comes."""

from nova import exception as nova_exception
from nova.api.validation.extra_specs import validators as nova_validators
from oslotest import base

from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.nova_api import extra_spec_validators


class ValidatorsTest(base.BaseTestCase):

    def test_loaded_by_nova(self):
        for key in request.EXTRA_SPECS:
            self.assertIn(key, nova_validators.VALIDATORS)
        self.assertEqual(
            set(request.EXTRA_SPECS) | {'gpgpu:{key}'},
            {validator.name for validator in extra_spec_validators.register()})

    def test_every_right_value(self):
        for key, values in request.EXTRA_SPECS.items():
            for value in values:
                nova_validators.validate(key, str(value))

    def test_wrong_value_names_the_right_ones(self):
        exc = self.assertRaises(
            nova_exception.ValidationError, nova_validators.validate,
            'gpgpu:topology', 'linked')
        for word in ('linked', 'same_numa', 'same_switch', 'any'):
            self.assertIn(word, str(exc))

    def test_wrong_key_names_the_right_ones(self):
        for key in ('gpgpu:colour', 'gpgpu:numa', 'gpgpu:topology:x'):
            exc = self.assertRaises(
                nova_exception.ValidationError, nova_validators.validate,
                key, 'red')
            for word in (key, *request.EXTRA_SPECS):
                self.assertIn(word, str(exc))
