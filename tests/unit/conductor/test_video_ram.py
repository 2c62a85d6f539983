# SPDX-License-Identifier: Apache-2.0
"""Tests of the video RAM of GPUs by model."""

import csv
import pathlib

import yaml
from oslotest import base

from gpgpu_plugin.conductor import type_sync

TOP = pathlib.Path(__file__).parents[3]
TABLE = TOP / 'gpgpu_plugin/conductor/video_ram.csv'
VARIANTS = yaml.safe_load(
    (TOP / 'etc/gpgpu/variants.yaml').read_text())['variants']


class OfModelTest(base.BaseTestCase):

    def test_model_whose_name_has_its_memory_agrees(self) -> None:
        found = 0
        for variant in VARIANTS:
            name = variant['name'].rpartition('_')[2]
            stated = type_sync.video_ram_of_model(variant['vendor'],
                                                  variant['device'])
            if name.endswith('GB') and stated is not None:
                self.assertEqual(f'{stated // 1024}GB', name, variant['name'])
                found += 1
        self.assertGreater(found, 15)

    def test_model_is_one_of_the_catalogue_and_has_one_size(self) -> None:
        named = {(variant['vendor'], variant['device']): variant['name']
                 for variant in VARIANTS}
        rows = list(csv.DictReader(TABLE.read_text().splitlines()))
        self.assertGreater(len(rows), 100)
        self.assertEqual(len(rows), len(type_sync._OF_MODEL))
        for row in rows:
            self.assertEqual(
                row['variant'], named[row['vendor'], row['device']])
            self.assertIn(int(row['gib']), range(1, 1024))

    def test_unknown_model_has_none(self) -> None:
        self.assertIsNone(type_sync.video_ram_of_model('10de', 'ffff'))


class OfTypeTest(base.BaseTestCase):

    def test_whole_gpu_and_plain_vfs_have_their_part(self) -> None:
        self.assertEqual([16384, 4096, 5461, None, None], [
            type_sync.video_ram_of_type(name, 16384) for name in (
                'passthrough', 'vf4', 'vf3', 'T4-4Q', 'vf0')])
        self.assertIsNone(type_sync.video_ram_of_type('passthrough', None))
