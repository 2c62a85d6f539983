# SPDX-License-Identifier: Apache-2.0
"""Tests of gpgpu-manage what-if drain: lines, remarks, exit code."""

import json

import fixtures

from gpgpu_plugin.domain import naming
from tests.unit.cmd import base
from tests.unit.cmd import fake_cloud
from tests.unit.conductor import base as conductor_base

GPU = 'CUSTOM_GPU_H100'
NODE = conductor_base.NODE
NODE2, NODE3 = map(conductor_base.node_uuid, ('h2', 'h3'))
OTHER = 'd9428888-122b-41e1-b85c-5d3b8d7d4f2f'


def server(uuid, count, **fields):
    """Return a server as Nova describes it."""
    return {'server': {
        'id': uuid, 'name': 'web', 'status': 'ACTIVE', 'image': '',
        'OS-EXT-SRV-ATTR:host': 'h1',
        'flavor': {'vcpus': 4, 'ram': 512, 'disk': 10, 'ephemeral': 0,
                   'swap': 0, 'extra_specs': {f'resources:{GPU}': str(count)}},
        **fields}}


class WhatIfDrainTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.report(host='h2', node_uuid=NODE2)
        self.claim(4)
        self.services = [{'host': host, 'status': 'enabled', 'state': 'up'}
                         for host in ('h1', 'h2')]
        self.answers = {
            f'/servers/{base.INSTANCE}': server(base.INSTANCE, 4),
            '/os-services': {'services': self.services},
            '/os-aggregates': {'aggregates': []},
            '/allocation_candidates': self.offered(96)}
        self.cloud = fake_cloud.FakeCloud(self.answers)

    def offered(self, vcpus, nodes=(NODE, NODE2)):
        amounts = {'VCPU': {'capacity': vcpus, 'used': 0},
                   'MEMORY_MB': {'capacity': 10 ** 6, 'used': 0}}
        return {
            'allocation_requests': [{'allocations': {
                node: {'resources': {'VCPU': 4, 'MEMORY_MB': 512}}}}
                for node in nodes],
            'provider_summaries': {node: {
                'root_provider_uuid': node, 'resources': amounts}
                for node in nodes}}

    def rows(self, *hosts):
        """Return the lines by what they say; code and remarks are kept."""
        done = self.manage('-v', 'what-if', 'drain', *(hosts or ('h1',)),
                           '-f', 'json', connect=self.cloud.connect)
        self.code, self.remarks = done.code, done.err
        self.lines = json.loads(done.out)
        return [(row['What'], row['Target'] or row['Host'], row['Reason'])
                for row in self.lines]

    def test_instance_that_fits_has_a_target_and_how_it_gets_there(self):
        self.assertEqual([('instance', 'h2', None),
                          ('capacity', None, None)], self.rows())
        self.assertEqual(0, self.code)
        line, left = self.lines
        self.assertEqual((base.INSTANCE, {GPU: 4}, 'h1'), (
            line['Name'], line['Resources'], line['Host']))
        for words in (
                f'openstack server migrate --host h2 {base.INSTANCE}',
                'a live migration is refused',
                'how long the cleaning of its GPUs takes is not known'):
            self.assertIn(words, line['Detail'])
        self.assertEqual(('H100/passthrough', 12, 4, GPU), (
            left['Name'], left['Before'], left['After'], left['Detail']))
        self.assertIn('1 of 1 instance can leave h1', self.remarks)
        self.assertNotIn('only this order was tried', self.remarks)
        self.assertIn('filters of Nova that were not examined: '
                      'ComputeCapabilitiesFilter', self.remarks)

    def test_server_whose_numa_nodes_are_not_examined_is_named(self):
        self.claim(2, OTHER)
        self.report(host='h3', node_uuid=NODE3)
        self.services.append({**self.services[0], 'host': 'h3'})
        self.answers['/allocation_candidates'] = self.offered(
            96, (NODE2, NODE3))
        pinned = server(OTHER, 2)
        pinned['server']['flavor']['extra_specs']['hw:numa_nodes'] = '1'
        self.answers[f'/servers/{OTHER}'] = pinned
        self.rows()
        self.assertEqual(0, self.code)
        self.assertEqual(
            {base.INSTANCE: False, OTHER: True},
            {line['Name']: 'NUMA nodes are not examined' in line['Detail']
             for line in self.lines if line['What'] == 'instance'})
        self.assertIn(f'other hosts: {OTHER}\n', self.remarks)
        del pinned['server']['flavor']['extra_specs']['hw:numa_nodes']
        self.rows()
        self.assertNotIn('NUMA', self.remarks)

    def test_table_has_the_same_lines(self):
        done = self.manage('what-if', 'drain', 'h1',
                           connect=self.cloud.connect)
        self.assertEqual(0, done.code)
        self.assertIn(f'{GPU} 4', done.out)

    def test_instance_that_fits_nowhere_comes_after_those_that_move(self):
        self.claim(3, OTHER)
        self.claim_on_h2()
        self.answers[f'/servers/{OTHER}'] = server(OTHER, 3)
        self.assertEqual([
            ('instance', 'h2', None),
            ('instance', 'h1', 'fits_nowhere'),
            ('capacity', None, None)], self.rows())
        self.assertEqual(1, self.code)
        self.assertIn('1 of 2 instances can leave h1', self.remarks)
        self.assertIn('only this order was tried, the largest instances '
                      'first; another one may fit more', self.remarks)
        self.assertIn(f'"gpgpu-manage why-not --server {OTHER}"',
                      self.lines[1]['Detail'])

    def claim_on_h2(self):
        case = conductor_base.ConductorTestCase
        conductor_base.claims.claim(self.conductor.db, case.request(
            self, 2, 'there', host='h2'), lease=600)

    def test_what_placement_lacks_nobody_gets(self):
        self.claim(4, OTHER)
        self.answers[f'/servers/{OTHER}'] = server(OTHER, 4)
        for offered, reasons in (
                (self.offered(8), [None, None]),
                (self.offered(4), [None, 'fits_nowhere']),
                (self.offered(4, [NODE]), ['fits_nowhere'] * 2)):
            self.answers['/allocation_candidates'] = offered
            self.assertEqual(reasons, [
                reason for what, _, reason in self.rows()
                if what == 'instance'])
        self.assertEqual(1, self.code)

    def test_candidates_that_were_not_examined_are_named(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.conductor_contract.OPTIONS_AT_ONCE', 1))
        self.rows()
        self.assertIn('Placement has more candidates than were examined',
                      self.remarks)

    def test_hosts_that_are_down_or_drained_are_no_targets(self):
        self.services[1]['state'] = 'down'
        self.assertEqual(('instance', 'h1', 'fits_nowhere'), self.rows()[0])
        self.services[1]['state'] = 'up'
        self.assertEqual(('instance', 'h1', 'fits_nowhere'),
                         self.rows('h1', 'h2')[0])
        self.assertEqual(1, self.code)

    def test_isolated_host_is_no_target_without_its_trait(self):
        self.answers['/os-aggregates'] = {'aggregates': [{
            'name': 'gpus', 'hosts': ['h2'],
            'metadata': {naming.AGGREGATE_MARK: 'true',
                         'trait:CUSTOM_GPGPU_HOST': 'required'}}]}
        self.assertEqual([('instance', 'h1', 'fits_nowhere'),
                          ('capacity', None, None)], self.rows())

    def test_what_nova_can_do_follows_from_the_server(self):
        uuid = base.INSTANCE
        for fields, reason, code, words in (
                ({'status': 'SHUTOFF'}, None, 0, 'cold migration'),
                ({'status': 'VERIFY_RESIZE'}, None, 0,
                 'confirm or revert its resize first; then cold migration'),
                ({'status': 'PAUSED'}, 'server_status', 1,
                 'the server is PAUSED; Nova migrates servers that are '
                 'ACTIVE or SHUTOFF'),
                ({'OS-EXT-SRV-ATTR:host': 'h2', 'status': 'VERIFY_RESIZE'},
                 'server_elsewhere', 0, 'VERIFY_RESIZE on h2')):
            self.answers[f'/servers/{uuid}'] = server(uuid, 4, **fields)
            self.assertEqual(reason, self.rows()[0][2], fields)
            self.assertEqual(code, self.code, fields)
            self.assertIn(words, self.lines[0]['Detail'])
        self.answers[f'/servers/{uuid}'] = server(uuid, 0)
        self.assertEqual('allocation_not_requested', self.rows()[0][2])
        self.answers[f'/servers/{uuid}'] = 404
        self.assertEqual('no_server', self.rows()[0][2])
        self.assertEqual(0, self.code)

    def test_server_that_named_its_devices_cannot_move(self):
        with self.conductor.db.writer() as session:
            session.execute(conductor_base.sa.update(
                conductor_base.tables.ASSIGNMENTS).values(exact=True))
        self.assertEqual('exact_devices', self.rows()[0][2])
        self.assertEqual(1, self.code)

    def test_empty_host_can_be_drained(self):
        self.assertEqual([('capacity', None, None)], self.rows('h2'))
        self.assertEqual(0, self.code)
        self.assertEqual((12, 4), (
            self.lines[0]['Before'], self.lines[0]['After']))

    def test_cloud_that_cannot_be_asked_is_named(self):
        self.answers['/allocation_candidates'] = 503
        done = self.manage('what-if', 'drain', 'h1',
                           connect=self.cloud.connect)
        self.assertEqual((1, ''), (done.code, done.out))
        self.assertIn('--os-cloud', done.err)
