# SPDX-License-Identifier: Apache-2.0
"""Tests that the mixins declare the virt driver of Nova."""

import inspect

from nova.virt import driver
from oslotest import base

from gpgpu_plugin.virt import fake
from gpgpu_plugin.virt import libvirt
from gpgpu_plugin.virt import mixin
from gpgpu_plugin.virt import nova_driver

DECLARED = {
    name: method for name, method in vars(nova_driver.DeclaredDriver).items()
    if inspect.isfunction(method) and name != '__init__'}
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def named(method):
    """Return names and defaults of the parameters that have a name."""
    return [(parameter.name, parameter.default) for parameter
            in inspect.signature(method).parameters.values()
            if parameter.kind not in _VARIABLE]


def passes_on(method):
    return any(parameter.kind in _VARIABLE for parameter
               in inspect.signature(method).parameters.values())


class NovaDriverTest(base.BaseTestCase):

    def test_declared_methods_are_nova_s(self):
        for name, method in DECLARED.items():
            with self.subTest(name):
                real = named(getattr(driver.ComputeDriver, name))
                self.assertEqual(real[:len(named(method))], named(method))
                if not passes_on(method):
                    self.assertEqual(len(real), len(named(method)))

    def test_methods_of_nova_that_the_mixins_extend_are_declared(self):
        extended = {
            name for extending in mixin.GPUMixin.__mro__
            if extending.__module__.startswith('gpgpu_plugin.')
            for name in vars(extending)
            if not name.startswith('_')
            and hasattr(driver.ComputeDriver, name)}
        self.assertIn('spawn', extended)
        self.assertEqual(set(), extended - DECLARED.keys())
        for name in extended:
            with self.subTest(name):
                self.assertEqual(named(DECLARED[name]),
                                 named(getattr(mixin.GPUMixin, name)))

    def test_nova_s_driver_is_extended_at_run_time(self):
        for extended in (fake.GpuFakeDriver, libvirt.GpuLibvirtDriver):
            self.assertNotIn(nova_driver.DeclaredDriver, extended.__mro__)
            order = extended.__mro__
            self.assertLess(order.index(mixin.GPUMixin), next(
                place for place, base_class in enumerate(order)
                if base_class.__module__.startswith('nova.')))

    def test_domain_is_made_with_nova_s_parameters(self):
        ours = named(libvirt.GpuLibvirtDriver._get_guest_config)
        theirs = named(libvirt.driver.LibvirtDriver._get_guest_config)
        self.assertEqual(theirs[:len(ours)], ours)
