# SPDX-License-Identifier: Apache-2.0
"""Tests of ``python -m bench simulate``."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib

import fixtures
from oslotest import base

from bench import __main__ as bench_main

NODES = 'cpu_milli,memory_mib,gpu,model\n16000,65536,10,T4\n'
REQUESTS = ('cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n'
            '1000,1024,1,1000,\n')


class SimulateTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def run_command(self, *arguments, nodes=NODES, requests=REQUESTS,
                    policy='pack'):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = bench_main.main([
                'simulate', '--nodes', self.file('nodes.csv', nodes),
                '--requests', self.file('requests.csv', requests),
                '--policy', policy, *arguments])
        return code, out.getvalue(), err.getvalue()

    def test_seed_can_be_repeated(self) -> None:
        _, out, _ = self.run_command(
            '--seed', '1', '--seed', '2', '3', '-f', 'json')
        self.assertEqual([1, 2, 3], [row['seed'] for row in json.loads(out)])

    def test_row_for_each_seed(self) -> None:
        code, out, _ = self.run_command('--seed', '1', '2', '-f', 'json')
        rows = json.loads(out)
        self.assertEqual(0, code)
        for row in rows:
            self.assertGreater(row.pop('decisions_per_second'), 0)
        self.assertEqual(
            [{'policy': 'pack', 'seed': seed, 'allocated_percent': 100.0,
              'at95': None, 'refused': 3} for seed in (1, 2)], rows)

    def test_learnt_mix_and_load(self) -> None:
        code, out, _ = self.run_command(
            '--learn-mix', '--load', '0.5', '-f', 'json', policy='FGD')
        self.assertEqual((0, 50.0, 'FGD', 42), (code, *(
            json.loads(out)[0][name]
            for name in ('allocated_percent', 'policy', 'seed'))))

    def test_link_partitions_of_a_model(self) -> None:
        nodes = NODES + '16000,65536,4,H100\n'
        table = self.file('pairs.json', json.dumps({
            'named_by': 'order', 'fabric': False,
            'partitions': [[0, 1], [2, 3]]}))
        requests = ('cpu_milli,memory_mib,num_gpu,gpu_milli,linked\n'
                    '1000,1024,2,1000,1\n')
        options = ('--link-partitions', f'H100={table}', '-f', 'json',
                   '--load', '1')
        for policy in ('pack', 'fgd', 'spread'):
            code, out, _ = self.run_command(
                *options, nodes=nodes, requests=requests, policy=policy)
            # Two of seven requests get one of the H100's two pairs each.
            self.assertEqual((0, 5), (code, json.loads(out)[0]['refused']))
        self.assertIn("'A30=", self.refused(
            '--link-partitions', f'A30={table}', nodes=nodes))
        self.assertIn('which has 10 GPUs', self.refused(
            '--link-partitions', table))
        self.assertIn('absent.json', self.refused(
            '--link-partitions', str(self.folder / 'absent.json')))

    def test_request_that_fits_on_no_node_is_refused(self) -> None:
        requests = REQUESTS + '1000,1024,20,1000,\n1000,1024,1,1000,H100\n'
        for policy in ('pack', 'fgd', 'random'):
            code, out, _ = self.run_command(
                '-f', 'json', '--load', '5', requests=requests,
                policy=policy)
            row = json.loads(out)[0]
            self.assertEqual((0, True), (code, row['refused'] > 1), policy)
            self.assertLess(0, row['allocated_percent'])

    def refused(self, *arguments, **more):
        code, _, err = self.run_command(*arguments, **more)
        self.assertNotEqual(0, code)
        return err

    def test_error_names_what_is_wrong(self) -> None:
        self.assertIn('packing, random', self.refused(policy='first-fit'))
        self.assertIn('--load', self.refused('--load', 'nan'))
        self.assertIn('--seed', self.refused('--seed', 'x'))
        self.assertIn('nodes.csv line 2 column gpu', self.refused(
            nodes=NODES.replace('10,', 'x,')))
        self.assertIn('requests.csv line 2 column gpu_milli', self.refused(
            requests=REQUESTS.replace(',1,1000', ',1,1001')))
        self.assertIn('absent.csv: cannot be read', self.refused(
            '--nodes', str(self.folder / 'absent.csv')))

    def test_file_that_is_no_text(self) -> None:
        path = self.folder / 'binary'
        path.write_bytes(b'\xff\xfe\x00')
        self.assertIn('CSV in UTF-8', self.refused('--nodes', str(path)))
