# SPDX-License-Identifier: Apache-2.0
"""Tests of the extra specs that nova-api accepts and refuses."""

import fixtures
from nova import exception as nova_exception
from nova.api.validation.extra_specs import resources as nova_resources
from nova.api.validation.extra_specs import validators as nova_validators
from oslotest import base

from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.nova_api import extra_spec_validators


class ValidatorsTest(base.BaseTestCase):

    def test_loaded_by_nova(self):
        for key in request.EXTRA_SPECS:
            self.assertIn(key, nova_validators.VALIDATORS)
        self.assertEqual(
            set(request.EXTRA_SPECS) | {
                'gpgpu:{key}', 'resources{group}:CUSTOM_{resource}',
                'resources{group}:(?:)CUSTOM_{resource}'},
            {validator.name for validator in extra_spec_validators.register()})

    def test_every_right_value(self):
        for key, values in request.EXTRA_SPECS.items():
            for value in values:
                nova_validators.validate(key, str(value))

    def test_wrong_value_names_the_right_ones(self):
        exc = self.assertRaises(
            nova_exception.ValidationError, nova_validators.validate,
            'gpgpu:topology', 'same_rack')
        for word in ('same_rack', 'linked', 'same_numa', 'same_switch',
                     'any'):
            self.assertIn(word, str(exc))

    def test_wrong_key_names_the_right_ones(self):
        for key in ('gpgpu:colour', 'gpgpu:numa', 'gpgpu:topology:x'):
            exc = self.assertRaises(
                nova_exception.ValidationError, nova_validators.validate,
                key, 'red')
            for word in (key, *request.EXTRA_SPECS):
                self.assertIn(word, str(exc))


class CustomClassTest(base.BaseTestCase):

    def load(self, *modules):
        """Load validators as Nova does, in this order."""
        loaded = {}
        self.useFixture(fixtures.MonkeyPatch(
            'nova.api.validation.extra_specs.validators.VALIDATORS', loaded))
        for module in modules:
            for validator in module.register():
                loaded[validator.name] = validator

    def check(self):
        for name in ('resources1:CUSTOM_GPU_H100',
                     'resources_X:CUSTOM_VGPU_T4_T4_4Q'):
            exc = self.assertRaises(
                nova_exception.ValidationError, nova_validators.validate,
                name, '1')
            self.assertIn(name, str(exc))
            self.assertIn(f"'resources:{name.partition(':')[2]}'", str(exc))
        for name in ('resources:CUSTOM_GPU_H100', 'resources1:CUSTOM_FPGA',
                     'resources:CUSTOM_FPGA', 'resources1:CUSTOM_GPUS'):
            nova_validators.validate(name, '1')
            self.assertRaises(
                nova_exception.ValidationError, nova_validators.validate,
                name, 'one')

    def test_suffixed_class_loaded_before_nova_is_refused(self):
        self.load(extra_spec_validators, nova_resources)
        self.check()

    def test_suffixed_class_loaded_after_nova_is_refused(self):
        self.load(nova_resources, extra_spec_validators)
        self.check()

    def test_suffixed_class_loaded_by_nova_is_refused(self):
        self.check()

    def test_pattern_for_custom_classes_is_that_of_nova(self):
        [nova] = [validator for validator in nova_resources.register()
                  if validator.name == 'resources{group}:CUSTOM_{resource}']
        ours = extra_spec_validators.register()[-1]
        self.assertEqual(
            (nova.name, nova.name_regex, nova.value, nova.parameters),
            (ours.name, ours.name_regex, ours.value, ours.parameters))
