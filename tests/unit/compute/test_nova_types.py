# SPDX-License-Identifier: Apache-2.0
"""Tests that the protocols of Nova's objects match the installed Nova."""

import inspect
import re
import types
import typing

import fixtures
from nova import objects
from nova.compute import claims
from nova.compute import manager as compute_manager
from nova.compute import provider_tree
from nova.compute import resource_tracker
from nova.scheduler import host_manager
from nova.scheduler import weights
from nova.scheduler.client import report
from nova.virt import hardware
from nova.virt.libvirt import guest
from nova.virt.libvirt import host
from oslotest import base

from gpgpu_plugin.compute import nova_types

objects.register_all()


def constructed(kind):
    """Return an object with the attributes that a constructor makes."""
    return types.SimpleNamespace(**vars(kind), **dict.fromkeys(re.findall(
        r'self\.(\w+) = ', inspect.getsource(kind.__init__))))


NOVA = {
    nova_types.ProviderAllocations: report.ProviderAllocInfo,
    nova_types.ProviderData: provider_tree.ProviderData,
    nova_types.ProviderTree: provider_tree.ProviderTree,
    nova_types.ReportClient: report.SchedulerReportClient,
    nova_types.NUMACell: objects.InstanceNUMACell,
    nova_types.NUMATopology: objects.InstanceNUMATopology,
    nova_types.HostNUMACell: objects.NUMACell,
    nova_types.HostNUMATopology: objects.NUMATopology,
    nova_types.NetworkMetadata: objects.NetworkMetadata,
    nova_types.ComputeNode: objects.ComputeNode,
    nova_types.ImageMeta: objects.ImageMeta,
    nova_types.PCIRequests: objects.InstancePCIRequests,
    nova_types.Flavor: objects.Flavor,
    nova_types.PCIDevice: objects.PciDevice,
    nova_types.MigrationContext: objects.MigrationContext,
    nova_types.Migration: objects.Migration,
    nova_types.Instance: objects.Instance,
    nova_types.LibvirtGuest: guest.Guest,
    nova_types.LibvirtHost: host.Host,
    nova_types.WeighedHost: weights.WeighedHost(None, 0),
    nova_types.MoveClaim: claims.MoveClaim,
    nova_types.RequestSpec: objects.RequestSpec,
    nova_types.InstanceInfo: hardware.InstanceInfo(state=1),
    # Their attributes are made by their constructors.
    nova_types.Aggregate: objects.Aggregate,
    nova_types.HostState: host_manager.HostState('h', 'n', 'c'),
    nova_types.ComputeManager: constructed(compute_manager.ComputeManager),
    nova_types.NovaResourceTracker: constructed(
        resource_tracker.ResourceTracker),
    nova_types.ImageProperties: objects.ImageMetaProps,
    nova_types.VirtAPI: None,
}


def methods(protocol):
    return {name: member for name, member in vars(protocol).items()
            if inspect.isfunction(member) and not name.startswith('_')}


def attributes(protocol):
    return {*protocol.__annotations__, *(
        name for name, member in vars(protocol).items()
        if isinstance(member, property))}


def mismatch(declared, real):
    """Return why calls by one signature do not fit another, or None."""
    declared = inspect.signature(declared).parameters
    real = inspect.signature(real).parameters
    if list(declared) != list(real)[:len(declared)]:
        return f'{list(declared)} are not the first of {list(real)}'
    for name, parameter in declared.items():
        # What is passed by keyword fits either kind.
        if parameter.default != real[name].default or parameter.kind not in (
                real[name].kind, inspect.Parameter.KEYWORD_ONLY):
            return f'{parameter} is {real[name]}'
    required = [name for name in list(real)[len(declared):]
                if real[name].default is inspect.Parameter.empty]
    return f'{required} are required' if required else None


class NovaTypesTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            f'{__name__}.NOVA', {**NOVA, nova_types.VirtAPI:
                                 self.virt_api()}))

    def virt_api(self):
        class Manager:
            reportclient = object()
        return compute_manager.ComputeVirtAPI(Manager())

    def test_every_protocol_has_its_class_of_nova(self):
        protocols = {
            member for member in vars(nova_types).values()
            if isinstance(member, type)
            and getattr(member, '_is_protocol', False)}
        self.assertEqual(protocols, set(NOVA))

    def test_methods_have_nova_s_parameters(self):
        for protocol, real in NOVA.items():
            for name, declared in methods(protocol).items():
                with self.subTest(f'{protocol.__name__}.{name}'):
                    method = getattr(real, name)
                    self.assertIsNone(mismatch(
                        declared, getattr(method, '__func__', method)))

    def test_private_method_of_nova_s_tracker_has_its_parameters(self):
        self.assertIsNone(mismatch(
            nova_types.NovaResourceTracker._update,
            resource_tracker.ResourceTracker._update))

    def test_attributes_exist(self):
        for protocol, real in NOVA.items():
            for name in attributes(protocol):
                with self.subTest(f'{protocol.__name__}.{name}'):
                    self.assertTrue(
                        name in getattr(real, 'fields', ())
                        or hasattr(real, name))

    def test_every_protocol_declares_something(self):
        for protocol in NOVA:
            with self.subTest(protocol.__name__):
                self.assertTrue(methods(protocol) or attributes(protocol))

    def test_inventory_record_is_what_nova_stores(self):
        tree = provider_tree.ProviderTree()
        tree.new_root('h', 'u')
        record = dict.fromkeys(
            typing.get_type_hints(nova_types.InventoryRecord), 1)
        tree.update_inventory('u', {'VGPU': record})
        self.assertEqual({'VGPU': record}, tree.data('u').inventory)
        self.assertFalse(
            tree.has_inventory_changed('u', {'VGPU': dict(record)}))

    def test_wrong_signatures_are_found(self):
        def real(self, context, rp_uuid, *, name=None):
            """Stand for a method of Nova."""

        def renamed(self, context, uuid):
            """Differ: Nova calls the parameter rp_uuid."""

        def shorter(self, context):
            """Differ: Nova requires rp_uuid."""

        def positional(self, context, rp_uuid, name=None):
            """Differ: Nova takes name by keyword alone."""

        def defaulted(self, context, rp_uuid, *, name=''):
            """Differ: Nova's name is None if it is not passed."""
        for declared in (renamed, shorter, positional, defaulted):
            self.assertIsNotNone(mismatch(declared, real))

    def test_keyword_fits_what_nova_takes_by_position_too(self):
        def declared(self, context, *, name=None):
            """Pass the name by keyword, as the plugin does."""

        def real(self, context, name=None):
            """Take the name either way, as Nova 33 does."""
        self.assertIsNone(mismatch(declared, real))
