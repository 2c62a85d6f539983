# SPDX-License-Identifier: Apache-2.0
"""Tests of which hosts have groups of GPUs."""

from gpgpu_plugin.db import group
from tests.unit.db import base


class LoadTest(base.DatabaseTestCase):

    def setUp(self):
        super().setUp()
        self.variant = base.variant('T4')
        self.host = base.host('h1')
        self.add(self.variant, self.host)

    def group(self, *capacities, host=None):
        """Add a group with a type for each of some capacities."""
        self.add(base.with_types(host or self.host, self.variant, *(
            {'vgpu_type': f'type{number}', 'max_capacity': most}
            for number, most in enumerate(capacities))))

    def load(self):
        with self.db.reader() as session:
            return [tuple(host) for host in group.load_gpu_hosts(session)]

    def test_host_with_several_types_is_listed_once(self):
        self.group(8, 16)
        self.assertEqual([('h1', 'node-of-h1')], self.load())

    def test_only_live_hosts_with_groups_are_hosts_with_gpus(self):
        gone, plain = base.host('gone', deleted=7), base.host('plain')
        self.add(gone, plain)
        self.group(8, host=gone)
        # Its devices have gone.
        self.group(0)
        self.assertEqual([], self.load())
