# SPDX-License-Identifier: Apache-2.0
"""Tests of ``flavor set``, the real openstacksdk in front of a fake Nova."""

from unittest import mock

from keystoneauth1 import exceptions as keystone_exceptions
from openstack import exceptions as sdk_exceptions

from gpgpu_plugin.cmd import flavor
from gpgpu_plugin.objects import admin
from tests.unit.cmd import base
from tests.unit.cmd import fake_nova


class FlavorSetTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.api.variant_create(self.context, admin.VariantInfo(
            name='MINE', vendor='10de', device='20b2',
            resource_class='PGPU'))
        self.nova = self.useFixture(fake_nova.FakeNova())

    def set(self, *arguments, name='gpu'):
        return self.json('flavor', 'set', name, *arguments,
                         connect=self.nova.connect)

    def refused(self, *arguments, name='gpu'):
        return super().refused('flavor', 'set', name, *arguments,
                               connect=self.nova.connect)

    def test_set_lets_nova_check_the_extra_specs(self):
        shown = self.set('--gpu', 'H100=2', '--topology', 'same_numa')
        expected = {'resources:CUSTOM_GPU_H100': '2',
                    'gpgpu:topology': 'same_numa'}
        self.assertEqual((expected, expected), (shown, self.nova.specs))
        [(method, path, microversion)] = self.nova.changes
        self.assertEqual(('POST', f'compute {flavor.MICROVERSION}'),
                         (method, microversion))
        self.assertIn(self.nova.flavor_id, path)

    def test_flavor_is_found_by_its_id(self):
        self.set('--gpu', 'H100=2', name=self.nova.flavor_id)
        self.assertEqual({'resources:CUSTOM_GPU_H100': '2'}, self.nova.specs)

    def test_set_removes_other_gpus_alone(self):
        rest = {'hw:cpu_policy': 'dedicated', 'resources:VGPU': '1',
                'resources:CUSTOM_FPGA': '1', 'trait:CUSTOM_GPU': 'required'}
        rules = {'gpgpu:numa_policy': 'required',
                 'gpgpu:topology': 'same_switch'}
        self.nova.specs.update({
            **rest, **rules, 'resources:PGPU': '1',
            'resources:CUSTOM_GPU_GONE': '3'})
        shown = self.set('--gpu', 'H100=2')
        gpus = {'resources:CUSTOM_GPU_H100': '2'}
        self.assertEqual(({**gpus, **rules}, {**rest, **gpus, **rules}),
                         (shown, self.nova.specs))
        self.set('--gpu', 'H100=2', '--topology', 'same_numa')
        self.assertEqual({
            **rest, **gpus, **rules, 'gpgpu:topology': 'same_numa'},
            self.nova.specs)

    def test_second_set_changes_nothing(self):
        self.set('--gpu', 'H100=2')
        del self.nova.changes[:]
        self.set('--gpu', 'H100=2')
        self.assertEqual([], self.nova.changes)

    def test_set_replaces_the_count(self):
        self.set('--gpu', 'H100=2')
        self.set('--gpu', 'H100=4')
        self.assertEqual({'resources:CUSTOM_GPU_H100': '4'}, self.nova.specs)

    def test_unknown_flavor_is_named(self):
        err = self.refused('--gpu', 'H100=2', name='none')
        self.assertIn('flavor none: ', err)
        self.assertEqual({}, self.nova.specs)

    def test_unknown_variant_asks_no_cloud(self):
        self.assertIn('known: H100, MINE',
                      self.refused('--gpu', 'H9=2'))
        self.assertFalse(hasattr(self.nova, 'cloud'))

    def test_set_that_nova_refuses_changes_nothing(self):
        self.nova.specs['gpgpu:topology'] = 'same_switch'
        self.nova.refusal = 'Validation failed; extra spec is wrong'
        self.assertIn('Validation failed; extra spec is wrong',
                      self.refused('--gpu', 'H100=2'))
        # Nothing half done: what goes goes last.
        self.assertEqual({'gpgpu:topology': 'same_switch'}, self.nova.specs)

    def test_set_that_ends_half_way_can_be_run_again(self):
        self.nova.specs.update({'resources:CUSTOM_GPU_A': '1',
                                'resources:CUSTOM_GPU_B': '1'})
        self.nova.undeletable = 'resources:CUSTOM_GPU_B'
        err = self.refused('--gpu', 'H100=2')
        self.assertIn('but resources:CUSTOM_GPU_B could not be removed: ',
                      err)
        self.assertIn('run the command again', err)
        self.nova.undeletable = None
        self.set('--gpu', 'H100=2')
        self.assertEqual({'resources:CUSTOM_GPU_H100': '2'}, self.nova.specs)

    def test_unset_removes_gpus_and_rules_alone(self):
        rest = {'hw:cpu_policy': 'dedicated', 'resources:VGPU': '1'}
        ours = {'gpgpu:topology': 'same_switch', 'resources:PGPU': '1',
                'resources:CUSTOM_GPU_GONE': '3'}
        self.nova.specs.update({**rest, **ours})
        shown = self.json('flavor', 'unset', 'gpu', connect=self.nova.connect)
        self.assertEqual((ours, rest), (shown, self.nova.specs))
        again = self.manage('flavor', 'unset', 'gpu',
                            connect=self.nova.connect)
        self.assertEqual((0, rest), (again.code, self.nova.specs))
        self.assertIn('flavor gpu requests no GPUs', again.err)

    def test_flavor_requires_gpu_hosts_while_these_are_isolated(self):
        self.conf.set_override(
            'isolation_aggregate', 'gpus', 'gpgpu_conductor')
        isolated = {'resources:CUSTOM_GPU_H100': '2',
                    'trait:CUSTOM_GPGPU_HOST': 'required'}
        self.assertEqual(isolated, self.json(
            'flavor', 'set', 'f1', '--dry-run', '--gpu', 'H100=2'))
        self.set('--gpu', 'H100=2')
        self.assertEqual(isolated, self.nova.specs)
        self.json('flavor', 'unset', 'gpu', connect=self.nova.connect)
        self.assertEqual({}, self.nova.specs)

    def test_set_without_isolation_keeps_the_trait_until_unset(self):
        trait = {'trait:CUSTOM_GPGPU_HOST': 'required'}
        self.nova.specs.update(trait)
        self.set('--gpu', 'H100=2')
        self.assertEqual({**trait, 'resources:CUSTOM_GPU_H100': '2'},
                         self.nova.specs)
        self.json('flavor', 'unset', 'gpu', connect=self.nova.connect)
        self.assertEqual({}, self.nova.specs)

    def test_unset_of_an_unknown_flavor_is_refused(self):
        self.assertIn('flavor none: ', super().refused(
            'flavor', 'unset', 'none', connect=self.nova.connect))

    def test_cloud_that_is_not_named_or_not_known_is_asked_for(self):
        for error in (sdk_exceptions.ConfigException('no cloud'),
                      keystone_exceptions.MissingRequiredOptions([])):
            self.nova.connect = mock.Mock(side_effect=error)
            self.assertIn('name a cloud of clouds.yaml with --os-cloud',
                          self.refused('--gpu', 'H100=1'))

    def test_set_connects_to_the_named_cloud(self):
        self.manage('--os-cloud', 'west', 'flavor', 'set', 'gpu', '--gpu',
                    'H100=1', connect=self.nova.connect)
        self.assertEqual('west', self.nova.cloud)
