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
"""Tests of the video RAM of GPUs by model."""

import pathlib

import yaml
from oslotest import base

from gpgpu_plugin.domain import video_ram

CATALOGUE = pathlib.Path(__file__).parents[3] / 'etc/gpgpu/variants.yaml'


class OfModelTest(base.BaseTestCase):

    def test_model_whose_name_has_its_memory_agrees(self) -> None:
        found = 0
        for variant in yaml.safe_load(CATALOGUE.read_text())['variants']:
            name = variant['name'].rpartition('_')[2]
            stated = video_ram.of_model(variant['vendor'], variant['device'])
            if name.endswith('GB') and stated is not None:
                self.assertEqual(f'{stated // 1024}GB', name, variant['name'])
                found += 1
        self.assertGreater(found, 15)

    def test_id_is_of_one_size(self) -> None:
        for vendor, models in video_ram._GIBIBYTES.items():
            listed = ' '.join(models.values()).split()
            self.assertEqual(sorted(set(listed)), sorted(listed), vendor)
            for device in listed:
                self.assertRegex(device, '^[0-9a-f]{4}$')

    def test_unknown_model_has_none(self) -> None:
        self.assertIsNone(video_ram.of_model('10de', 'ffff'))


class OfTypeTest(base.BaseTestCase):

    def test_whole_gpu_and_plain_vfs_have_their_part(self) -> None:
        self.assertEqual([16384, 4096, 5461, None, None], [
            video_ram.of_type(name, 16384) for name in (
                'passthrough', 'vf4', 'vf3', 'T4-4Q', 'vf0')])
        self.assertIsNone(video_ram.of_type('passthrough', None))
