# SPDX-License-Identifier: Apache-2.0

import os

import fixtures

from gpgpu_plugin.host.cleaning import steps
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.fake import host as fake_host
from tests.unit.host.cleaning import card


class HostDriverTest(card.CardCase):

    machine = 'intel-flex170-2'

    def setUp(self):
        super().setUp()
        self.host = fake_host.FakeHost.for_machine(
            self.machine, self.root, {'8086:56c0': 2})
        self.host.make_vfs(())
        self.pf = self.address
        self.gpu = next(function for function in self.host.scan().functions
                        if function.pf == self.gpu.id)
        self.address = self.gpu.address

    def cleaned(self):
        device = self.device('host-driver+reset+settings', vgpu_type='vf2')
        self.host.prepare(device)
        self.host.release(device)
        verdict = self.host.clean(device)
        return verdict, card.results_by_step(verdict)

    def test_driver_of_the_pf_is_the_evidence(self):
        verdict, results = self.cleaned()
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertEqual(
            {'driver': 'i915', 'version': f'Linux {os.uname().release}'},
            results['host-driver'].facts)
        # A VF has no bus of its own.
        self.assertEqual({'method': 'function'}, results['reset'].facts)

    def test_version_of_the_driver_is_named(self):
        module = f'{self.root}/bus/pci/drivers/i915/module'
        os.makedirs(module)
        with open(f'{module}/version', 'w', encoding='utf-8') as file:
            file.write('550.90.07\n')
        _, results = self.cleaned()
        self.assertEqual('550.90.07',
                         results['host-driver'].facts['version'])

    def test_pf_without_a_driver_clears_nothing(self):
        os.unlink(f'{self.root}/bus/pci/devices/{self.pf}/driver')
        verdict, _ = self.cleaned()
        self.assertFalse(verdict.passed)
        self.assertIn(f'its PF {self.pf} is bound to no driver',
                      verdict.failure)

    def test_vfio_driver_of_the_pf_clears_nothing(self):
        link = f'{self.root}/bus/pci/devices/{self.pf}/driver'
        os.unlink(link)
        os.symlink(f'{self.root}/bus/pci/drivers/vfio-pci', link)
        verdict, _ = self.cleaned()
        self.assertIn(f'its PF {self.pf} is bound to vfio-pci',
                      verdict.failure)


class WholeGPUTest(card.CardCase):

    def test_no_driver_clears_a_whole_gpu(self):
        self.assertEqual('inapplicable', steps.HostDriverStep().run(
            self.target()).outcome)


class FactsTest(card.CardCase):

    def test_parent_that_is_no_pci_function_is_named_itself(self):
        folder = self.useFixture(fixtures.TempDir()).path
        os.mkdir(f'{folder}/mbochs')
        self.assertEqual('mbochs', steps.host_driver_facts(
            sysfs.Sysfs(self.root), f'{folder}/mbochs')['driver'])
