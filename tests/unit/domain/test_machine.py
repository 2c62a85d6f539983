# SPDX-License-Identifier: Apache-2.0
"""Tests of comparing the identities of machines."""

from oslotest import base

from gpgpu_plugin.domain import host


def identity(boot_id='b1', machine_id='m1', **gpus):
    return host.MachineIdentity(
        boot_id=boot_id, machine_id=machine_id, gpus=gpus)


class DifferenceTest(base.BaseTestCase):

    def test_same_boot_is_the_same_machine_whatever_its_gpus(self):
        self.assertIsNone(host.machine_difference(
            identity(a='1', b='2'), identity(machine_id='m2', c='9')))

    def test_same_installation_after_a_reboot_is_the_same_machine(self):
        self.assertIsNone(host.machine_difference(
            identity(a='1'), identity('b2', a='1')))

    def test_gpu_that_a_reboot_lost_is_no_difference(self):
        self.assertIsNone(host.machine_difference(
            identity(a='1', b='2'), identity('b2', a='1')))

    def test_new_gpu_is_no_difference(self):
        self.assertIsNone(host.machine_difference(
            identity(a='1'), identity('b2', a='1', b='2')))

    def test_unknown_serial_number_is_no_difference(self):
        self.assertIsNone(host.machine_difference(
            identity(a='1'), identity('b2', a='')))

    def test_another_installation_is_another_machine(self):
        self.assertIn('machine id is m2 instead of m1',
                      host.machine_difference(
            identity(a='1'), identity('b2', 'm2', a='1')))

    def test_unknown_installation_after_a_reboot_is_another_machine(self):
        self.assertIn('unknown', host.machine_difference(
            identity(machine_id=''), identity('b2', machine_id='')))

    def test_cloned_installation_with_other_gpus_is_another_machine(self):
        self.assertIn('serial number 9', host.machine_difference(
            identity(a='1'), identity('b2', a='9')))

    def test_cloned_installation_with_gpus_elsewhere_is_another_machine(self):
        self.assertIn('at c instead of a', host.machine_difference(
            identity(a='1'), identity('b2', c='1')))

    def test_installation_that_lost_all_gpus_is_another_machine(self):
        self.assertIn('no place', host.machine_difference(
            identity(a='1'), identity('b2')))
