# SPDX-License-Identifier: Apache-2.0

import hashlib
import json
import pathlib

from tests.unit.host.cleaning import card


class SettingsTest(card.CardCase):

    def test_configuration_of_before_the_guest_passes(self):
        self.use()
        _, results = self.clean()
        facts = results['settings'].facts
        self.assertEqual(('', ''), (facts['option_rom_sha256'],
                                    facts['vpd_sha256']))
        [(function, shape)] = json.loads(facts['configuration']).items()
        self.assertEqual((self.gpu.id, '10de'), (function, shape['vendor']))

    def test_other_configuration_fails(self):
        self.use()
        path = f'{self.root}/bus/pci/devices/{self.address}/config'
        with open(path, 'r+b') as file:
            file.seek(2)
            file.write(b'\x39\x23')
        verdict, results = self.clean()
        self.assertEqual('failed', results['settings'].outcome)
        self.assertIn('differs from its baseline: device was',
                      verdict.failure)

    def test_other_option_rom_fails(self):
        self.vfio.roms[self.address] = b'one'
        self.use()
        self.vfio.roms[self.address] = b'two'
        verdict, results = self.clean()
        self.assertEqual('failed', results['settings'].outcome)
        self.assertIn(f'{self.address} differs from its baseline: option ROM '
                      f'was {hashlib.sha256(b"one").hexdigest()}, is '
                      f'{hashlib.sha256(b"two").hexdigest()}',
                      verdict.failure)

    def test_same_option_rom_is_evidence(self):
        self.vfio.roms[self.address] = b'one'
        for _ in range(2):
            self.use()
            verdict, results = self.clean()
            self.assertTrue(verdict.passed, verdict.failure)
            self.assertEqual(
                hashlib.sha256(b'one').hexdigest(),
                results['settings'].facts['option_rom_sha256'])

    def test_lost_baseline_fails(self):
        self.use()
        for path in pathlib.Path(self.root, 'etc/cards').iterdir():
            path.unlink()
        for _ in range(2):
            verdict, results = self.clean()
            self.assertEqual('failed', results['settings'].outcome)
            self.assertIn('its baseline: it is lost', verdict.failure)
        # An operator has looked at the card.
        verdict, _ = self.clean(cleaning='another')
        self.assertTrue(verdict.passed, verdict.failure)

    def test_replacement_is_compared_with_itself(self):
        self.vfio.roms[self.address] = b'one'
        self.use()
        self.vfio.roms[self.address] = b'two'
        for _ in range(2):  # an attempt may be cut off
            verdict, _ = self.clean(had_guest=False, replaces=True)
            self.assertTrue(verdict.passed, verdict.failure)
        self.use()
        self.vfio.roms[self.address] = b'three'
        verdict, _ = self.clean(cleaning='next')
        self.assertIn(hashlib.sha256(b'two').hexdigest(), verdict.failure)

    def test_gpu_that_no_guest_had_needs_no_baseline(self):
        _, results = self.clean(had_guest=False)
        self.assertEqual('passed', results['settings'].outcome)
