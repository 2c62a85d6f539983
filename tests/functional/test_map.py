# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage map`` of servers that Nova's REST API created."""

from __future__ import annotations

import pathlib
import re

import fixtures

from gpgpu_plugin.gpu_map import tree
from tests.fixtures import cloud
from tests.functional import test_vgpus


class MapTest(test_vgpus.VGPUViews, cloud.GpuCloud):
    """A host with whole GPUs beside one with vGPUs."""

    machines = {'gpu1': 'hgx-h100-8', 'gpu2': 'nvidia-t4-2'}
    variants = (('H100', *cloud.HGX_H100), *test_vgpus.T4)

    def page(self, *arguments: str) -> str:
        """Return the page that the command writes, without its elements."""
        file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'map.html')
        self.manage('map', '--html', str(file), *arguments)
        return ' '.join(re.sub(
            '<style>.*</style>|<[^>]*>', ' ', file.read_text('utf-8'),
            flags=re.DOTALL).split())

    def test_map_shows_who_has_which_gpu_and_vgpu(self) -> None:
        self.manage('vgpu-type', 'enable', 'T4', 'T4-4Q')
        self.wait_for(lambda: self.unallocated('gpu2').get('4Q') == 8,
                      'type in Placement')
        whole = self.boot(self.flavor(H100=2))
        shared = self.boot(self.vgpu_flavor(Q4=1))
        project = whole['tenant_id']
        shown = self.manage('map')
        # Unmanaged: the display of the server itself.
        # Two of eight GPUs are in use, and one of two, since just now.
        hours = '.' * (tree.HOURS - 1)
        self.assertIn(
            f'gpu1  N0[U AA FF]  N1[FF FF]  {hours}\u2582\n', shown)
        self.assertRegex(shown, r'(?m)^gpu2  (N0\[A\(A\)\]  N1\[F\]'
                                r'|N0\[F\]  N1\[A\(A\)\])'
                                rf'  {re.escape(hours)}\u2584$')
        # A GPU whose vGPUs belong to one project counts as its GPU.
        self.assertIn(f'A {project}: 3 GPUs, 1 vGPU',
                      self.manage('map', '--by', 'owner'))
        content = self.page()
        self.assertIn('GPUs in use in the last 24 hours: at least 0, at most '
                      '2, now 2 of 8', content)
        self.assertEqual(
            2, content.count(f'assigned, project A {whole["id"]}'))
        self.assertIn(f'T4-4Q, assigned, project A {shared["id"]}', content)
        self.assertNotIn(whole['id'], self.page('--variant', 'T4'))
        self.assertNotIn(shared['id'], self.page('--host', 'gpu1'))
