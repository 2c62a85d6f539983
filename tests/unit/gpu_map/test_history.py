# SPDX-License-Identifier: Apache-2.0
"""Tests of the GPUs in use over time."""

import datetime

from oslotest import base

from gpgpu_plugin.gpu_map import tree
from gpgpu_plugin.objects import history
from tests.fixtures import gpu_maps
from tests.fixtures import tenant

NOW = datetime.datetime(2026, 11, 24, 12, tzinfo=datetime.UTC)


def ago(hours):
    return f'{(NOW - datetime.timedelta(hours=hours)).isoformat()[:19]}Z'


def usage(device, began, ended=None, on='h1', name='u1'):
    return history.UsageInfo(
        **tenant.TENANT, uuid=name, instance_uuid='i1',
        host=on, device_uuid=device, address='0000:18:00.0', serial=None,
        variant='H100', vgpu_type='passthrough',
        resource_class='CUSTOM_GPU_H100', began_at=ago(began),
        ended_at=None if ended is None else ago(ended), seconds=0)


class InUseTest(base.BaseTestCase):

    def counts(self, *usages, devices=()):
        return tree.in_use(usages, devices, NOW)

    def test_usage_counts_from_its_beginning_to_its_end(self):
        [counts] = self.counts(usage('g1', 5, 2)).values()
        self.assertEqual((0,) * 18 + (1, 1, 1, 0, 0, 0), counts)
        self.assertEqual(tree.HOURS, len(counts))

    def test_usage_that_goes_on_counts_now(self):
        [counts] = self.counts(usage('g1', 0), usage('g2', 30)).values()
        self.assertEqual((1,) * 23 + (2,), counts)

    def test_usage_between_samples_does_not_count(self):
        [counts] = self.counts(usage('g1', 1.7, 1.2)).values()
        self.assertEqual((0,) * 24, counts)

    def test_vgpus_of_one_gpu_count_once(self):
        gpu = gpu_maps.gpu(0, 'assigned', variant='T4')
        parts = [gpu_maps.vgpu(number, gpu) for number in (0, 1)]
        usages = [usage(part.uuid, 1) for part in parts]
        self.assertEqual({'h1': (0,) * 22 + (1, 1)}, self.counts(
            *usages, devices=[*parts, gpu]))
        self.assertEqual({'h1': (0,) * 22 + (2, 2)}, self.counts(*usages))

    def test_hosts_are_counted_apart(self):
        self.assertEqual(
            {'h1': (0,) * 23 + (1,), 'h2': (0,) * 22 + (1, 1)},
            self.counts(usage('g1', 0), usage('g1', 1, on='h2')))

    def test_device_that_was_deleted_counts_by_its_usage(self):
        [counts] = self.counts(usage(None, 1, name='u1'),
                               usage(None, 1, name='u2')).values()
        self.assertEqual(2, counts[-1])

    def test_first_sample_is_in_the_period_that_is_read(self):
        self.assertEqual(NOW - datetime.timedelta(hours=23),
                         tree.history_since(NOW))
