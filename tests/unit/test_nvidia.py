# SPDX-License-Identifier: Apache-2.0
"""Tests of the NVIDIA GPUs whose registers are known."""

from oslotest import base

from gpgpu_plugin import nvidia

_A = nvidia.Architecture


class ArchitectureTest(base.BaseTestCase):

    def test_models_have_their_architecture(self):
        for device, expected in (
                ('1eb8', _A.TURING), ('20b5', _A.GA100), ('20b7', _A.GA100),
                ('20f1', _A.GA100), ('2235', _A.AMPERE), ('25b6', _A.AMPERE),
                ('26b9', _A.ADA), ('27b8', _A.ADA), ('22f0', _A.HOPPER),
                ('2330', _A.HOPPER), ('237f', _A.HOPPER),
                ('2901', _A.GB1XX), ('3182', _A.GB1XX), ('31c2', _A.GB1XX),
                ('2bb5', _A.GB2XX)):
            self.assertEqual(
                expected, nvidia.architecture('10de', device), device)

    def test_other_models_are_unknown(self):
        for vendor, device in (
                ('10de', '1db6'), ('10de', '2204'), ('10de', '22ef'),
                ('10de', '2380'), ('10de', 'ffff'), ('1002', '2330'),
                ('10de', None), (None, None)):
            self.assertIsNone(nvidia.architecture(vendor, device), device)


class RegistersTest(base.BaseTestCase):

    def test_every_architecture_has_registers_of_four_bytes(self):
        self.assertEqual(set(_A), set(nvidia.REGISTERS))
        for registers in nvidia.REGISTERS.values():
            for offset in (registers.boot, registers.clear):
                self.assertEqual(0, offset % 4)
                # BAR 0 has 16 MiB.
                self.assertLess(offset, 2 ** 24)

    def test_memory_is_cleared_when_both_registers_say_so(self):
        for architecture, registers in nvidia.REGISTERS.items():
            booted = registers.booted
            self.assertTrue(registers.is_cleared(booted, 1), architecture)
            for boot, clear in (
                    (booted, 0), (0, 1), (booted - 1, 1),
                    # Bit 0 is set in all of these.
                    (booted, 3), (booted, 0xffffffff), (booted, 0xbadf0201),
                    (0xffffffff, 1), (0xbadf0200 + booted, 1)):
                self.assertFalse(
                    registers.is_cleared(boot, clear), (boot, clear))
