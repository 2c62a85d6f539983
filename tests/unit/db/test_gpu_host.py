# SPDX-License-Identifier: Apache-2.0
"""Tests of the numbers of free GPUs of hosts."""

import functools

from gpgpu_plugin.db import gpu_host
from gpgpu_plugin.domain import hold
from tests.fixtures import rows
from tests.unit.db import base


class LoadTest(base.DatabaseTestCase):

    def setUp(self):
        super().setUp()
        self.variant = base.variant('T4')
        self.host = base.host('h1')
        self.add(self.variant, self.host)
        self.number = 0

    def group(self, *types, host=None):
        """Add a group; each type is max, remaining, on one GPU, enabled."""
        row = base.with_types(host or self.host, self.variant, *(
            {'vgpu_type': f'type{number}', 'max_capacity': most,
             'remaining_capacity': remaining, 'max_vgpu_per_pgpu': of_gpu,
             'enabled': enabled}
            for number, (most, remaining, of_gpu, enabled)
            in enumerate(types)))
        self.add(row)
        return row

    def device(self, group, state, **values):
        self.number += 1
        row = base.device(f'd{self.number}', host_id=self.host.id,
                          group_id=group.id, state=state, **values)
        self.add(row)
        return row

    def load(self):
        with self.db.reader() as session:
            return [tuple(host) for host in gpu_host.load(session)]

    def free(self):
        [(_, _, free)] = self.load()
        return free

    def test_whole_gpus_that_remain_are_free(self):
        self.group((8, 3, 1, True))
        self.assertEqual([('h1', 'node-of-h1', 3)], self.load())

    def test_vgpus_that_remain_are_the_gpus_that_they_fill(self):
        # Two GPUs of four small or two large vGPUs; one small one exists.
        self.group((2, 1, 1, True), (8, 7, 4, True), (4, 3, 2, True))
        self.assertEqual(2, self.free())

    def test_type_that_is_disabled_is_not_free(self):
        self.group((8, 8, 1, False), (8, 2, 1, True))
        self.assertEqual(2, self.free())

    def test_devices_that_are_cleaned_are_free_soon(self):
        group = self.group((8, 0, 1, True))
        self.device(group, 'dirty')
        gpu = self.device(group, 'available')
        for state in ('cleaning', 'dirty'):
            self.device(group, state, parent_id=gpu.id)
        self.assertEqual(2, self.free())

    def test_devices_that_will_not_be_offered_are_not_free(self):
        group = self.group((8, 0, 1, True))
        self.device(group, 'assigned')
        self.device(group, 'dirty', present=False)
        for kind in hold.HoldKind:
            gpu = self.device(group, 'dirty')
            self.device(group, 'dirty', parent_id=gpu.id)
            self.db.write(functools.partial(
                rows.hold, device_id=gpu.id, kind=kind, reason=None))
        self.assertEqual(0, self.free())

    def test_host_that_is_drained_has_an_unknown_number(self):
        self.db.write(functools.partial(
            rows.hold_host, name='h1', kind=hold.HostHoldKind.DRAINING))
        self.group((8, 0, 1, True))
        self.assertIsNone(self.free())

    def test_only_live_hosts_with_groups_are_hosts_with_gpus(self):
        gone, plain = base.host('gone', deleted=7), base.host('plain')
        self.add(gone, plain)
        self.group((8, 8, 1, True), host=gone)
        # Its devices have gone.
        self.group((0, 0, 1, True))
        self.assertEqual([], self.load())
