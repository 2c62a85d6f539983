# SPDX-License-Identifier: Apache-2.0
"""Tests of maps for terminals."""

import re

from oslotest import base

from gpgpu_plugin.gpu_map import mark
from gpgpu_plugin.gpu_map import text
from tests.fixtures import gpu_maps

EXPECTED = '''\
GPUs of all hosts, 2026-11-24T12:00:01Z: 2 hosts, 12 GPUs, by {}
{}

h1  N0[{}]  N1[{}]
h2  N0[{}]  N1[{}]
'''


def render(devices, aspect=mark.Aspect.STATE, *, colours=False, **fields):
    return text.render(
        gpu_maps.build(devices, **fields), aspect, colours=colours)


class TextTest(base.BaseTestCase):

    def test_map_is_readable_without_colours(self):
        self.assertEqual(EXPECTED.format(
            'state',
            '  A assigned: 3 GPUs, 2 vGPUs\n'
            '  P provisioning: 1 GPU\n  F available: 2 GPUs\n'
            '  D dirty: 1 GPU\n  C cleaning: 1 GPU\n'
            '  Q quarantined: 1 GPU\n  X disabled: 1 GPU\n'
            '  M missing: 1 GPU\n  U unmanaged: 1 GPU',
            'AA PF', 'DC QX', 'MU F', 'A(AA)'),
            render(gpu_maps.small_cloud()))

    def test_map_by_owner_names_projects(self):
        one, two = gpu_maps.PROJECTS
        self.assertEqual(EXPECTED.format(
            'owner',
            f'  A {one}: 2 GPUs, 1 vGPU\n  B {two}: 1 GPU, 1 vGPU\n'
            f'  * several on one GPU: 1 GPU\n  - not assigned: 8 GPUs',
            'AB A-', '-- --', '-- -', '*(AB)'),
            render(gpu_maps.small_cloud(), mark.Aspect.OWNER))

    def test_link_partitions_are_below_their_host(self):
        devices = [gpu_maps.gpu(0), gpu_maps.gpu(0, on='h2')]
        shown = render(devices, groups=[gpu_maps.linked(
            p01='taken', p23='broken', p0='overlapped', p2='free',
            p3='free')])
        self.assertTrue(shown.endswith(
            'h1  N0[F]\n'
            '    H100, 1 GPU: 2 free, 1 overlapped\n'
            '    H100, 2 linked GPUs: 1 taken, 1 broken\n'
            'h2  N0[F]\n'), shown)

    def test_colours_change_nothing_else(self):
        coloured = render(gpu_maps.small_cloud(), colours=True)
        self.assertIn('\x1b[48;5;25;38;5;231mA\x1b[0m', coloured)
        self.assertEqual(render(gpu_maps.small_cloud()),
                         re.sub(r'\x1b\[[0-9;]*m', '', coloured))

    def test_projects_beyond_z_are_others(self):
        shown = render((gpu_maps.gpu(
            number, 'assigned', **gpu_maps.owned(f'i{number}', f'p{number}'))
            for number in range(28)), mark.Aspect.OWNER)
        self.assertIn('  + 2 others\n', shown)
        self.assertEqual(2 + 1, shown.count('+'))

    def test_gpu_that_is_ill_has_a_mark_behind_its_letter(self):
        shown = render([
            gpu_maps.gpu(0, 'assigned', health='failed'),
            gpu_maps.gpu(1, health='degraded'), gpu_maps.gpu(2, health='ok')])
        self.assertIn('N0[A!F! F]', shown)
        self.assertIn(
            '  ! behind a letter: 1 GPU failed, 1 GPU degraded\n', shown)
        self.assertNotIn('!', render([gpu_maps.gpu(0, health='ok')]))

    def test_draining_host_says_so(self):
        self.assertIn('h1  no GPU  draining\n', render(
            [], hosts=[gpu_maps.host(draining=True)]))

    def test_silent_host_says_since_when(self):
        self.assertIn(
            'h1  no GPU  silent since 2026-11-24T12:00:00Z\n',
            render([], hosts=[gpu_maps.host(host_state='silent')]))
        self.assertNotIn('silent', render(
            [], hosts=[gpu_maps.host(host_state='up')]))

    def test_history_is_a_level_for_each_hour(self):
        devices = [gpu_maps.gpu(number) for number in range(4)]
        fields = {'in_use': {'h1': (0,) * 19 + (1, 2, 3, 4, 4)}}
        shown = render(devices, **fields)
        self.assertIn(
            '  \u2581..\u2588 behind a host: GPUs in use in the last 24 '
            'hours, \u2588 is all\n', shown)
        self.assertIn('h1  N0[FF FF]  ...................'
                      '\u2582\u2584\u2586\u2588\u2588\n', shown)
        self.assertIn('  ...................24688\n', text.render(
            gpu_maps.build(devices, **fields), mark.Aspect.STATE,
            colours=False, levels=text.DIGITS))

    def test_history_of_a_host_without_managed_gpu_is_left_out(self):
        shown = render([gpu_maps.gpu(0, 'unmanaged', variant=None)],
                       in_use={})
        self.assertIn('h1  N0[U]\n', shown)

    def test_one_of_many_gpus_in_use_is_not_none(self):
        shown = render([gpu_maps.gpu(number) for number in range(16)],
                       in_use={'h1': (0, 1, 15, 16)})
        self.assertIn('  .\u2581\u2587\u2588\n', shown)

    def test_host_without_gpu_says_so(self):
        self.assertIn('h1  no GPU\n', render([], hosts=[gpu_maps.host()]))

    def test_unknown_node_has_no_number(self):
        self.assertIn('N?[F]', render([gpu_maps.gpu(0, numa_node=None)]))
