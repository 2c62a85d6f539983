# SPDX-License-Identifier: Apache-2.0
"""Tests that each unit of a claim has a device row of its own."""

from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import device_rows
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import offer
from tests.unit.conductor import vgpu_base

PF = vgpu_base.t4(0, vgpu_mechanism='vf', sriov_totalvfs=16, sriov_numvfs=3)


class TakeCase(vgpu_base.VGPUTestCase):

    def take(self, *types):
        with self.db.writer() as session:
            host = host_db.lock(session, 'h1')
            rows = host_rows.load_one(session, host)
            [group] = capacity.groups(rows)
            taken = device_rows.take(rows, [
                (group, offer.Selection(
                    gpu_id=self.functions[0].id, vgpu_type=name,
                    placement_id=None)) for name in types])
            return [(now.stable_id.removeprefix(self.functions[0].id),
                     now.vgpu_type) for now in taken]


class MdevTest(TakeCase):

    def test_rows_of_several_types_are_different_ones(self):
        self.assertEqual(
            [('/mdev0', 'T4-4Q'), ('/mdev1', 'T4-4Q'), ('/mdev2', 'T4-1Q')],
            self.take('T4-4Q', 'T4-4Q', 'T4-1Q'))

    def test_free_rows_come_before_new_ones(self):
        self.end(self.ask(Q4=2))
        self.ask(Q4=1)
        self.assertEqual([('/mdev1', 'T4-4Q'), ('/mdev2', 'T4-4Q')],
                         self.take('T4-4Q', 'T4-4Q'))

    def test_whole_gpu_is_its_own_row(self):
        self.assertEqual([('', None)], self.take(naming.PASSTHROUGH))


class VFTest(TakeCase):

    functions = (PF, *(vgpu_base.vf(PF, index, device='1eb8')
                   for index in range(3)))

    def test_no_vf_is_taken_twice(self):
        self.assertEqual(
            [('/vf0', 'T4-4Q'), ('/vf1', 'T4-4Q'), ('/vf2', 'T4-1Q')],
            self.take('T4-4Q', 'T4-4Q', 'T4-1Q'))
