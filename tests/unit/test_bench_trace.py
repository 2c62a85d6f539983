# SPDX-License-Identifier: Apache-2.0
"""Tests of reading traces."""

from __future__ import annotations

from oslotest import base

from bench.simulation import trace
from gpgpu_plugin import exception
from gpgpu_plugin.domain import fabric
from gpgpu_plugin.domain import weighing
from tests.unit.domain.weighing import test_host

NODES = 'sn,cpu_milli,memory_mib,gpu,model'
REQUESTS = 'cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec'
PAIRS = fabric.parse_link_table(
    '{"named_by": "order", "partitions": [[0, 1], [2, 3]]}')


class TraceTest(base.BaseTestCase):

    def message(self, read, *lines, **more):
        return str(self.assertRaises(
            exception.Invalid, read, lines, 'a.csv', **more))

    def test_hosts(self) -> None:
        self.assertEqual([test_host.host()], trace.hosts(
            [NODES, 'a,16000,65536,2,T4'], 'a.csv'))

    def test_requests(self) -> None:
        self.assertEqual(
            [test_host.request(units=460, variants={'T4', 'P100'}),
             test_host.request(gpus=0, units=0),
             test_host.request(gpus=2)],
            trace.requests(
                [REQUESTS, '4000,8192,1,460,T4|P100', '4000,8192,0,0,',
                 '4000,8192,2,1000,'], 'a.csv'))

    def test_request_without_the_column_of_models_is_bound_to_none(
            self) -> None:
        self.assertEqual([test_host.request()], trace.requests(
            [REQUESTS.removesuffix(',gpu_spec'), '4000,8192,1,1000'],
            'a.csv'))

    def test_request_of_linked_gpus(self) -> None:
        self.assertEqual(
            [test_host.request(gpus=2, is_linked=True),
             test_host.request(gpus=2)],
            trace.requests(
                [f'{REQUESTS},linked', '4000,8192,2,1000,,1',
                 '4000,8192,2,1000,,0'], 'a.csv'))
        # One GPU meets every topology.
        self.assertEqual([test_host.request()], trace.requests(
            [f'{REQUESTS},linked', '4000,8192,1,1000,,1'], 'a.csv'))
        for line in ('1,1,1,500,,1', '1,1,0,0,,1', '1,1,1,1000,,2'):
            self.assertIn('a.csv line 2 column linked: ', self.message(
                trace.requests, f'{REQUESTS},linked', line))

    def test_link_partitions_of_nodes(self) -> None:
        four = test_host.host(free=[1000] * 4, variant='H100')
        found, other = trace.with_links(
            [four, test_host.host()], PAIRS, 'H100')
        self.assertEqual(weighing.HostLinks(
            fabric.partitions_of((0b0011, 0b1100)), 0b1111, is_confined=True),
            found.links)
        self.assertEqual(test_host.host(), other)
        self.assertEqual([found] * 2, trace.with_links([four] * 2, PAIRS))

    def test_link_partitions_that_do_not_fit_a_node(self) -> None:
        for gpus in (2, 8):
            self.assertIn(f'which has {gpus} GPUs', str(self.assertRaises(
                exception.Invalid, trace.with_links,
                [test_host.host(free=[1000] * gpus)], PAIRS)))
        # Slots may be those of some GPUs only.
        slots = fabric.parse_link_table(
            '{"named_by": "slot", "partitions": [["a", "b"]]}')
        [found] = trace.with_links(
            [test_host.host(free=[1000] * 3)], slots)
        self.assertEqual((fabric.partitions_of((0b011,)), 0b111),
                         found.links[:2])

    def test_whole_number_with_zeros_behind_the_point(self) -> None:
        self.assertEqual([test_host.request(units=460)], trace.requests(
            [REQUESTS, '4000.0,8192.00,1.0,460.0,'], 'a.csv'))

    def test_error_names_file_line_and_column(self) -> None:
        for line, column in (
                ('4k,8192,1,1000,', 'cpu_milli'),
                ('4000,-1,1,1000,', 'memory_mib'),
                ('4000,8192,1025,1000,', 'num_gpu'),
                ('4000.5,8192,1,1000,', 'cpu_milli'),
                ('.0,8192,1,1000,', 'cpu_milli'),
                ('4000,8192,1,1001,', 'gpu_milli'),
                ('4000,8192,1,0,', 'gpu_milli'),
                ('4000,8192,2,500,', 'gpu_milli'),
                ('4000,8192,1,1000', 'gpu_spec')):
            self.assertIn(f'a.csv line 3 column {column}: ', self.message(
                trace.requests, REQUESTS, '1,1,1,1000,', line))

    def test_missing_column(self) -> None:
        self.assertIn('a.csv line 1 column model', self.message(
            trace.hosts, 'sn,cpu_milli,memory_mib,gpu', 'a,1,1,1'))

    def test_empty_file_or_heading_alone(self) -> None:
        self.assertIn('a.csv line 1', self.message(trace.hosts))
        self.assertIn('a.csv line 2', self.message(trace.hosts, NODES))

    def test_cloud_or_requests_without_gpu(self) -> None:
        self.assertIn('column gpu', self.message(
            trace.hosts, NODES, 'a,1,1,0,'))
        self.assertIn('column num_gpu', self.message(
            trace.requests, REQUESTS, '1,1,0,0,'))

    def test_file_that_is_no_csv(self) -> None:
        self.assertIn('a.csv line 2', self.message(
            trace.hosts, NODES, '"a'))
