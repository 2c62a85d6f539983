# SPDX-License-Identifier: Apache-2.0
"""Tests of gpgpu-manage why-not: rows, remarks, and what is asked."""

import json
import types
import uuid

import fixtures

from gpgpu_plugin.cmd import why_not_cloud
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.scheduler_filters import scheduler_view
from gpgpu_plugin.scheduler_weights import ranking
from tests.unit.cmd import base
from tests.unit.cmd import fake_cloud
from tests.unit.conductor import base as conductor_base

GPU = 'CUSTOM_GPU_H100'
FLAVOR = {
    'id': '7', 'name': 'gpu.2', 'vcpus': 4, 'ram': 512, 'disk': 10,
    'OS-FLV-EXT-DATA:ephemeral': 0, 'swap': '',
    'extra_specs': {f'resources:{GPU}': '2'}}
UP = {'host': 'h1', 'status': 'enabled', 'state': 'up'}
SERVER = {
    'id': base.INSTANCE, 'name': 'web-1', 'status': 'ERROR', 'image': '',
    'fault': {'message': 'No valid host was found. '},
    'flavor': {'original_name': 'gpu.2', 'vcpus': 4, 'ram': 512, 'disk': 10,
               'ephemeral': 0, 'swap': 0,
               'extra_specs': {f'resources:{GPU}': '9'}}}


class WhyNotTest(base.CommandTestCase):

    verbose = ()

    def setUp(self):
        super().setUp()
        node = conductor_base.NODE
        self.answers = {
            '/flavors/detail': {'flavors': [FLAVOR]},
            '/servers/' + base.INSTANCE: {'server': dict(SERVER)},
            '/os-services': {'services': [UP]},
            '/os-aggregates': {'aggregates': []},
            '/allocation_candidates': self.offered(node),
            '/resource_providers': {'resource_providers': [
                {'uuid': 'p', 'name': 'h1_gpu_H100'},
                {'uuid': node, 'name': 'h1'}]},
            f'/resource_providers/{node}/usages': {'usages': {}},
            f'/resource_providers/{node}/traits': {'traits': []},
            f'/resource_providers/{node}/inventories': {'inventories': {
                name: self.record(1000)
                for name in ('VCPU', 'MEMORY_MB', 'DISK_GB')}},
            '/resource_providers/p/usages': {'usages': {GPU: 7}},
            '/resource_providers/p/traits': {'traits': []},
            '/resource_providers/p/inventories': {'inventories': {
                GPU: self.record(8)}}}
        self.cloud = fake_cloud.FakeCloud(self.answers)

    def offered(self, *nodes, free=96):
        """Return Placement's answer with hosts of so many free vCPUs."""
        amounts = {'VCPU': {'capacity': 96, 'used': 96 - free},
                   'MEMORY_MB': {'capacity': 10 ** 6, 'used': 0}}
        return {
            'allocation_requests': [{'allocations': {
                node: {'resources': {'VCPU': 4}},
                f'p-{node}': {'resources': {GPU: 2}}}} for node in nodes],
            'provider_summaries': {
                name: {'root_provider_uuid': node, 'resources': amounts}
                for node in nodes for name in (node, f'p-{node}')}}

    def record(self, total):
        return {'total': total, 'reserved': 0, 'allocation_ratio': 1.0,
                'min_unit': 1, 'max_unit': total, 'step_size': 1}

    def rows(self, *arguments):
        """Return (fits, by, reason) of each line, and the remarks."""
        done = self.manage(*self.verbose, 'why-not', *arguments, '-f', 'json',
                           connect=self.cloud.connect)
        self.assertEqual(0, done.code, done.err)
        self.details = [row['Detail'] for row in json.loads(done.out)]
        return [(row['Fits'], row['By'], row['Reason'])
                for row in json.loads(done.out)], done.err

    def test_host_that_fits_is_one_line(self):
        rows, remarks = self.rows('--flavor', 'gpu.2')
        self.assertEqual([(True, None, None)], rows)
        self.assertEqual('gpgpu-manage: fits on 1 of 1 hosts; 0 more have no '
                         'GPU of the requested kind\n', remarks)
        # One list of services, one of aggregates, and one question to
        # Placement for all hosts.
        self.assertEqual(
            {('compute', 'GET'): 3, ('placement', 'GET'): 1},
            self.cloud.requests)

    def test_verbose_names_the_filters_that_were_not_examined(self):
        self.verbose = ('-v',)
        _, remarks = self.rows('--flavor', 'gpu.2')
        self.assertIn('filters of Nova that were not examined: '
                      'ComputeCapabilitiesFilter', remarks)
        self.assertNotIn('GpuFilter', remarks)
        # Nothing is ranked beside one host.
        self.assertNotIn('rank among', remarks)

    def ranks(self, *arguments):
        """Return rank and score by host, and the remarks."""
        done = self.manage('-v', 'why-not', '--flavor', 'gpu.2', *arguments,
                           '-f', 'json', connect=self.cloud.connect)
        self.assertEqual(0, done.code, done.err)
        return {row['Host']: (row['Rank'], row['Score'])
                for row in json.loads(done.out)}, done.err

    def second_host(self, functions=conductor_base.EIGHT):
        second = conductor_base.node_uuid('h2')
        self.report(functions, 'h2', node_uuid=second)
        self.answers['/os-services'] = {'services': [
            UP, {**UP, 'host': 'h2'}]}
        self.answers['/allocation_candidates'] = self.offered(
            conductor_base.NODE, second)

    def test_hosts_that_fit_are_ranked_as_the_weigher_does(self):
        self.second_host()
        self.claim(2)
        ranks, remarks = self.ranks()
        self.assertEqual({'h1': 1, 'h2': 2}, {
            host: rank for host, (rank, _) in ranks.items()})
        self.assertGreater(ranks['h1'][1], ranks['h2'][1])
        self.assertIn('rank among 2 hosts that fit, by policy pack, for '
                      'the cloud\'s flavors alike, since', remarks)
        self.assertIn('not included: the other weighers of Nova', remarks)
        self.conf.set_override('weight_policy', 'spread', 'gpgpu_scheduler')
        self.assertEqual({'h1': 2, 'h2': 1}, {
            host: rank for host, (rank, _) in self.ranks()[0].items()})

    def test_rank_of_one_host_is_among_all_that_fit(self):
        self.second_host()
        self.claim(2)
        ranks, remarks = self.ranks('--host', 'h2')
        self.assertEqual({'h2': 2}, {
            host: rank for host, (rank, _) in ranks.items()})
        self.assertIn('rank among 2 hosts', remarks)

    def flavors(self, *specs):
        """Let the cloud have these flavors beside the one that is asked for.
        """
        self.answers['/flavors/detail'] = {'flavors': [FLAVOR, *(
            {**FLAVOR, 'id': f'f{number}', 'name': f'f{number}',
             'extra_specs': dict(extra)}
            for number, extra in enumerate(specs))]}

    def scores(self, *possible):
        """Return the weigher's score by host, with requests of flavors."""
        view = scheduler_view.SchedulerViewCache(self.api).refresh()
        hosts = [types.SimpleNamespace(
            uuid=conductor_base.node_uuid(host), vcpus_total=48,
            cpu_allocation_ratio=2.0, vcpus_used=0, free_ram_mb=10 ** 6,
            total_usable_ram_mb=10 ** 6, ram_allocation_ratio=1.0,
            allocation_candidates=[]) for host in ('h1', 'h2')]
        found = ranking.Ranking(view, 'pack', [
            scheduling.CountedRequests(kind, 1.0) for kind in possible],
        ).scores(hosts, (
            request_mod.from_extra_specs(FLAVOR['extra_specs']), 4, 512,
            None))
        return dict(zip(('h1', 'h2'), (round(score, 6) for score in found),
                        strict=True))

    def test_rank_and_score_are_those_of_gpu_weigher(self):
        self.second_host()
        self.claim(3)
        pair, one, plain = (
            scheduling.RequestKind(4, 512, GPU, 2),
            scheduling.RequestKind(4, 512, GPU, 1),
            scheduling.RequestKind(4, 512))
        # The third is a duplicate; the fourth cannot be requested.
        self.flavors({f'resources:{GPU}': '1'}, {}, {f'resources:{GPU}': '1'},
                     {f'resources:{GPU}': 'x'})
        self.answers['/flavors/detail']['flavors'].append({
            **FLAVOR, 'id': 'f9', 'name': 'f9', 'vcpus': 40,
            'OS-FLV-DISABLED:disabled': True})
        ranks, remarks = self.ranks()
        self.assertIn('the cloud\'s flavors alike, since too few requests '
                      'arrived yet', remarks)
        expected = self.scores(pair, one, plain)
        self.assertNotEqual(self.scores(), expected)
        self.assertEqual(
            expected, {host: score for host, (_, score) in ranks.items()})
        requests = self.conductor._service._requests
        requests.add([scheduling.ArrivedRequests(
            pair, tuple(str(uuid.uuid4()) for _ in range(100)))])
        requests.run_once()
        ranks, remarks = self.ranks()
        self.assertIn('the 1 most frequent kinds of requests', remarks)
        expected = self.scores(pair, one, plain)
        self.assertNotEqual(self.scores(), expected)
        self.assertEqual(
            expected, {host: score for host, (_, score) in ranks.items()})

    def test_devices_of_another_service_do_not_decide_the_rank(self):
        self.second_host()
        self.claim(2)
        expected, _ = self.ranks()
        self.answers['/flavors/detail'] = {'flavors': [
            {**FLAVOR, 'extra_specs': {
                **FLAVOR['extra_specs'], 'resources:CUSTOM_FPGA': '4'}},
            {**FLAVOR, 'name': 'plain'}]}
        ranks, _ = self.ranks()
        self.assertEqual({'h1': 1, 'h2': 2}, {
            host: rank for host, (rank, _) in ranks.items()})
        self.assertEqual(expected, ranks)

    def test_flavors_that_cannot_be_read_are_left_out(self):
        self.second_host()
        self.answers[f'/servers/{base.INSTANCE}'] = {'server': {
            **SERVER, 'flavor': FLAVOR}}
        self.answers['/flavors/detail'] = 403
        done = self.manage('-v', 'why-not', '--server', base.INSTANCE,
                           connect=self.cloud.connect)
        self.assertEqual(0, done.code, done.err)
        self.assertIn('equally many requests for one, two, four', done.err)

    def test_hosts_beyond_the_long_answer_are_asked_for_alone(self):
        self.second_host()
        both, second = self.answers['/allocation_candidates'], (
            conductor_base.node_uuid('h2'))
        self.answers['/allocation_candidates'] = lambda path, query: (
            self.offered(second) if query.get('in_tree') == second
            else self.offered(conductor_base.NODE))
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.cmd.why_not_cloud.LIMIT', 1))
        asked_alone, _ = self.ranks()
        self.answers['/allocation_candidates'] = both
        self.assertEqual(self.ranks()[0], asked_alone)

    def test_everybody_who_refuses_has_a_line(self):
        self.claim(7)
        self.answers['/allocation_candidates'] = self.offered()
        self.answers['/os-services'] = {'services': [
            {**UP, 'status': 'disabled', 'disabled_reason': 'a fan',
             'state': 'down'}]}
        rows, remarks = self.rows('--flavor', '7')
        self.assertEqual([
            (False, 'gpgpu', 'not_enough_available'),
            (False, 'placement', 'placement_no_capacity'),
            (False, 'nova', 'service_disabled'),
            (False, 'nova', 'service_down'),
            (False, 'change', 'move'), (False, 'change', 'fewer')], rows)
        self.assertIn('7 assigned, 1 available', self.details[0])
        self.assertIn('h1_gpu_H100: 1 free', self.details[1])
        self.assertIn('a fan', self.details[2])
        self.assertIn(f'move instance {base.INSTANCE} to', self.details[4])
        # Placement has too few GPUs for the same reason as the plugin.
        for detail in self.details[4:]:
            self.assertTrue(detail.endswith(
                '; not enough alone: service_disabled, service_down'), detail)
        self.assertIn('fits on 0 of 1 hosts', remarks)

    def test_reasons_of_the_plugin_that_are_left_are_named(self):
        self.claim(7)
        self.manage('host', 'drain', 'h1')
        self.rows('--flavor', '7')
        self.assertTrue(self.details[-1].endswith(
            '; not enough alone: host_draining'), self.details[-1])

    def test_nothing_is_advised_on_a_host_that_has_to_report(self):
        self.claim(7)
        self.answers['/allocation_candidates'] = self.offered()
        sessions.mark_restored(self.conductor.db)
        rows, _ = self.rows('--flavor', '7')
        self.assertIn((False, 'gpgpu', 'host_restored'), rows)
        self.assertNotIn('change', [by for _, by, _ in rows])

    def test_change_is_not_enough_where_traits_and_vcpus_are_against_it(self):
        self.claim(7)
        self.answers['/allocation_candidates'] = self.offered()
        self.answers['/flavors/detail'] = {'flavors': [{
            **FLAVOR, 'vcpus': 2000, 'extra_specs': {
                **FLAVOR['extra_specs'], 'trait:CUSTOM_X': 'required'}}]}
        self.rows('--flavor', 'gpu.2')
        for detail in self.details[-2:]:
            self.assertTrue(detail.endswith(
                '; not enough alone: placement_trait_missing, '
                'placement_no_capacity'), detail)

    def test_flavor_without_the_trait_of_an_isolated_host_is_refused(self):
        trait = {'trait:CUSTOM_GPGPU_HOST': 'required'}
        self.answers['/os-aggregates'] = {'aggregates': [
            {'name': 'gpus', 'hosts': ['h1', 'h2'],
             'metadata': {'gpgpu:managed': 'true', **trait}},
            # Whether Nova excludes the hosts of this one is not known.
            {'name': 'racks', 'hosts': ['h1'], 'metadata': trait}]}
        rows, _ = self.rows('--flavor', 'gpu.2')
        self.assertEqual([(False, 'nova', 'isolated_aggregate')], rows)
        self.assertIn('aggregate gpus', self.details[0])
        self.answers['/flavors/detail'] = {'flavors': [{
            **FLAVOR, 'extra_specs': {**FLAVOR['extra_specs'], **trait}}]}
        rows, _ = self.rows('--flavor', 'gpu.2')
        self.assertEqual([(True, None, None)], rows)

    def test_server_is_examined_by_its_flavor(self):
        rows, remarks = self.rows('--server', base.INSTANCE)
        self.assertEqual(
            [(False, 'gpgpu', 'not_enough_available'),
             (False, 'change', 'fewer')], rows)
        self.assertIn('server web-1 is ERROR; hosts are examined as for '
                      'another one like it; its fault is: No valid host was '
                      'found', remarks)
        self.assertIn('boots from a volume', remarks)

    def test_image_is_part_of_the_request(self):
        self.answers[f'/servers/{base.INSTANCE}'] = {'server': {
            **SERVER, 'image': {'id': 'im'}, 'flavor': FLAVOR}}
        self.answers['/images/im'] = {
            'hw_pci_numa_affinity_policy': 'nearest'}
        done = self.manage('why-not', '--server', base.INSTANCE,
                           connect=self.cloud.connect)
        self.assertEqual(1, done.code)
        self.assertIn("'nearest'", done.err)
        self.answers['/images/im'] = 403
        rows, remarks = self.rows('--server', base.INSTANCE)
        self.assertEqual([(True, None, None)], rows)
        self.assertIn('its image is not examined: ', remarks)

    def test_who_cannot_be_asked_is_unknown_and_not_a_yes(self):
        self.answers['/allocation_candidates'] = 503
        rows, _ = self.rows('--flavor', 'gpu.2')
        self.assertEqual([(None, 'placement', 'unknown')], rows)
        self.answers['/os-services'] = 403
        rows, remarks = self.rows('--flavor', 'gpu.2')
        self.assertEqual([(None, 'placement', 'unknown'),
                          (None, 'nova', 'unknown')], rows)
        self.assertIn('fits on 0 of 1 hosts', remarks)

    def test_placement_that_refuses_without_a_reason_is_named(self):
        self.answers['/allocation_candidates'] = self.offered()
        self.answers['/resource_providers/p/usages'] = {'usages': {}}
        rows, _ = self.rows('--flavor', 'gpu.2')
        self.assertEqual([(False, 'placement', 'placement_refuses')], rows)

    def test_host_without_nova_compute_is_named(self):
        self.answers['/os-services'] = {'services': []}
        rows, _ = self.rows('--flavor', 'gpu.2')
        self.assertEqual([(False, 'nova', 'no_service')], rows)

    def test_host_without_such_gpus_is_counted_unless_it_is_named(self):
        self.second_host(())
        rows, remarks = self.rows('--flavor', 'gpu.2')
        self.assertEqual([(True, None, None)], rows)
        self.assertIn('1 more have no GPU of the requested kind', remarks)
        rows, _ = self.rows('--flavor', 'gpu.2', '--host', 'h2')
        self.assertEqual([(False, 'gpgpu', 'no_such_group')], rows)

    def test_wrong_names_are_named(self):
        for arguments, words in (
                (('--flavor', 'x'), 'flavor x (see "openstack flavor list'),
                (('--server', 'd9428888-122b-41e1-b85c-000000000000'),
                 'of a server that was deleted, use --flavor'),
                (('--flavor', 'gpu.2', '--host', 'h9'), 'h9')):
            done = self.manage('why-not', *arguments,
                               connect=self.cloud.connect)
            self.assertEqual((1, ''), (done.code, done.out))
            self.assertIn(words, done.err)

    def test_flavor_without_gpus_is_refused(self):
        self.answers['/flavors/detail'] = {'flavors': [
            {**FLAVOR, 'extra_specs': {}}]}
        done = self.manage('why-not', '--flavor', 'gpu.2',
                           connect=self.cloud.connect)
        self.assertEqual(1, done.code)
        self.assertIn(GPU, done.err)

    def test_nova_that_does_not_answer_is_named(self):
        self.answers['/flavors/detail'] = 503
        done = self.manage('why-not', '--flavor', 'gpu.2',
                           connect=self.cloud.connect)
        self.assertEqual(1, done.code)
        self.assertIn('--os-cloud', done.err)

    def test_suffixed_groups_are_not_examined(self):
        self.answers['/flavors/detail'] = {'flavors': [{
            **FLAVOR, 'extra_specs': {
                **FLAVOR['extra_specs'], 'resources1:CUSTOM_NET': '1'}}]}
        self.assertIn('suffixed groups', self.rows('--flavor', '7')[1])

    def test_guest_with_a_numa_topology_is_examined_as_one(self):
        near = {**FLAVOR['extra_specs'], 'gpgpu:numa_policy': 'required'}
        for specs, reason in (({}, 'numa_policy_required'),
                              ({'hw:numa_nodes': '2'}, None),
                              ({'hw:mem_page_size': 'large'}, None),
                              ({'hw:cpu_policy': 'dedicated'}, None),
                              ({'hw:cpu_policy': 'shared'},
                               'numa_policy_required')):
            self.answers['/flavors/detail'] = {'flavors': [
                {**FLAVOR, 'extra_specs': near | specs}]}
            rows, _ = self.rows('--flavor', 'gpu.2')
            self.assertEqual(reason, rows[0][2], specs)

    def test_numa_topology_and_cpus_may_be_of_the_image(self):
        for specs, properties, nodes, cpus in (
                ({}, {}, None, 'VCPU'),
                ({}, {'hw_numa_nodes': '2'}, 2, 'VCPU'),
                ({}, {'hw_cpu_policy': 'dedicated'}, 1, 'PCPU'),
                ({'hw:cpu_policy': 'shared'}, {'hw_cpu_policy': 'dedicated'},
                 None, 'VCPU')):
            asked = why_not_cloud._asked(
                {**FLAVOR, 'extra_specs': specs}, properties, ())
            self.assertEqual(
                (nodes, {cpus}),
                (asked.guest_nodes,
                 set(asked.needs.resources) & {'VCPU', 'PCPU'}), properties)
