# SPDX-License-Identifier: Apache-2.0
"""Tests of GpuWeigher, behind the filter that it relies on."""

import dataclasses

from nova import objects
from nova.scheduler import weights as nova_weights
from nova.scheduler.weights import cpu
from nova.scheduler.weights import ram
from oslo_config import fixture as config_fixture
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin import scheduler_weights
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.scheduler_filters import gpu_filter
from gpgpu_plugin.scheduler_filters import request_view
from gpgpu_plugin.scheduler_filters import scheduler_view
from gpgpu_plugin.scheduler_weights import gpu_weigher
from tests.unit.scheduler_filters import make

objects.register_all()

VGPU = 'CUSTOM_VGPU_A_Q4'


def spec(number=1, image=None, vcpus=4, topology=None, **specs):
    extra = {f'resources:{name}': value for name, value in specs.items()}
    if topology:
        extra['gpgpu:topology'] = topology
    return objects.RequestSpec(
        instance_uuid=f'{number:08d}-1111-1111-1111-111111111111',
        project_id='p1', scheduler_hints={}, image=image, numa_topology=None,
        flavor=objects.Flavor(
            vcpus=vcpus, memory_mb=1024, extra_specs=extra))


def vgpus(node, *available):
    """Return a host whose GPUs can take some vGPUs, four each."""
    sent = make.groups(node)
    [group] = sent.groups
    free = sum(1 << gpu for gpu, units in enumerate(available) if units)
    empty = sum(1 << gpu for gpu, units in enumerate(available) if units == 4)
    return dataclasses.replace(sent, groups=(dataclasses.replace(
        group, types=(
            scheduling.TypeMasks(resource_class=VGPU, free=free,
                                 available=available, most=4),
            scheduling.TypeMasks(resource_class=make.RC, free=empty))),))


class GpuWeigherTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.config = self.useFixture(
            config_fixture.Config(gpu_weigher.CONF))
        conf_gpgpu.register_opts(gpu_weigher.CONF)
        self.weigher = gpu_weigher.GpuWeigher(tuple)

    def cloud(self, *hosts):
        """Have the conductor tell of some hosts."""
        self.api = make.FakeAPI(make.changes(*hosts), *(
            [make.changes()] * 20))
        self.filter = gpu_filter.GpuFilter(
            scheduler_view.SchedulerViewCache(self.api))

    def change(self, *hosts):
        """Have the conductor tell of changes with the next call."""
        self.api.changes.insert(0, make.changes(*hosts))

    def order(self, asked, *hosts, more=()):
        """Return the hosts as Nova orders them, the best first."""
        passed = list(self.filter.filter_all(hosts, asked))
        return [weighed.obj for weighed in (
            nova_weights.HostWeightHandler().get_weighed_objects(
                [*more, self.weigher], passed, asked))]

    def best(self, asked, *names, **kwargs):
        return self.order(asked, *map(make.host, names), **kwargs)[0].host

    def test_nova_finds_it_by_the_entry_point(self):
        self.assertIn(gpu_weigher.GpuWeigher,
                      scheduler_weights.all_weighers())

    def test_pack_takes_the_host_that_serves_others_least(self):
        self.cloud(make.groups('h1'), make.groups('h2', free=0b0001),
                   make.groups('h3', free=0b0111))
        self.assertEqual('h2', self.best(
            spec(CUSTOM_GPU_A='1'), 'h1', 'h2', 'h3'))
        self.assertEqual('h3', self.best(
            spec(CUSTOM_GPU_A='2'), 'h1', 'h3'))
        self.assertEqual('h1', self.best(
            spec(CUSTOM_GPU_A='3'), 'h1'))

    def test_spread_takes_the_host_with_the_most_free_gpus(self):
        self.config.config(weight_policy='spread', group='gpgpu_scheduler')
        self.cloud(make.groups('h1', free=0b0011), make.groups('h2'),
                   make.groups('h3', free=0b0111))
        self.assertEqual(
            ['h2', 'h3', 'h1'], [host.host for host in self.order(
                spec(CUSTOM_GPU_A='1'),
                *map(make.host, ('h1', 'h2', 'h3')))])

    def test_policy_stands_above_the_ram_and_cpu_weighers(self):
        self.cloud(make.groups('h1', free=0b0001), make.groups('h2'))
        hosts = (make.host('h1', vcpus_used=90, used_ram_mb=1_000_000),
                 make.host('h2'))
        others = (ram.RAMWeigher(), cpu.CPUWeigher())
        asked = spec(CUSTOM_GPU_A='1')
        self.assertEqual(
            'h1', self.order(asked, *hosts, more=others)[0].host)
        self.config.config(weight_multiplier=0.5, group='gpgpu_scheduler')
        self.assertEqual(
            'h2', self.order(asked, *hosts, more=others)[0].host)

    def test_neighbouring_ranks_differ_by_more_than_all_of_nova(self):
        self.assertGreater(
            gpu_weigher.CONF.gpgpu_scheduler.weight_multiplier
            / gpu_weigher.GpuWeigher.maxval, 6)

    def test_aggregate_changes_the_multiplier(self):
        host = make.host('h1')
        self.assertEqual(100.0, self.weigher.weight_multiplier(host))
        host.aggregates = [objects.Aggregate(
            metadata={'gpgpu_weight_multiplier': '7'})]
        self.assertEqual(7.0, self.weigher.weight_multiplier(host))

    def test_without_gpus_hosts_without_gpus_are_better(self):
        self.cloud(make.groups('h1'), dataclasses.replace(
            make.groups('h2'), groups=()))
        self.filter._source.refresh()
        self.assertEqual(
            ['h2', 'h3', 'h1'], [host.host for host in self.order(
                spec(), *map(make.host, ('h1', 'h2', 'h3')))])

    def test_tags_of_aggregates_count_without_gpus_alone(self):
        self.cloud(make.groups('h1', free=0b0001), make.groups('h2'))
        hosts = [make.host('h1'), make.host('h2')]
        hosts[0].aggregates = [objects.Aggregate(
            metadata={'gpgpu:tags': 'fast-network'})]
        self.assertEqual('h2', self.order(spec(), *hosts)[0].host)
        self.assertEqual('h1', self.order(
            spec(CUSTOM_GPU_A='1'), *hosts)[0].host)
        # A conductor that never answered says nothing of GPUs.
        self.filter = gpu_filter.GpuFilter()
        self.assertEqual('h2', self.order(spec(), *hosts)[0].host)

    def test_without_a_view_nothing_is_weighed(self):
        self.filter = gpu_filter.GpuFilter()
        asked = spec()
        hosts = [make.host('h2'), make.host('h1')]
        self.assertEqual(hosts, self.order(asked, *hosts))

    def test_conductor_that_does_not_answer_weighs_nothing(self):
        self.cloud()
        self.api.changes = [
            exception.ConductorUnavailable(method='x', timeout=1)]
        hosts = [make.host('h2'), make.host('h1')]
        # A class that may be another service's: the boot goes on.
        self.assertEqual(hosts, self.order(spec(CUSTOM_FPGA='1'), *hosts))

    def test_request_that_no_filter_saw_is_not_weighed(self):
        weighed = [nova_weights.WeighedHost(make.host(name), 0)
                   for name in ('h1', 'h2')]
        self.assertEqual([0, 0], self.weigher.weigh_objects(
            weighed, spec(CUSTOM_GPU_A='1')))

    def test_change_of_a_host_changes_its_rank(self):
        self.cloud(make.groups('h1', free=0b0001), make.groups('h2'))
        asked = spec(CUSTOM_GPU_A='1')
        self.assertEqual('h1', self.best(asked, 'h1', 'h2'))
        self.change(make.groups('h1', generation=2),
                    make.groups('h2', generation=2, free=0b0001))
        self.assertEqual('h2', self.best(asked, 'h1', 'h2'))

    def test_vgpus_fill_the_started_gpu_that_is_fullest(self):
        self.cloud(vgpus('h1', 4, 4), vgpus('h2', 4, 2), vgpus('h3', 4, 1))
        asked = spec(CUSTOM_VGPU_A_Q4='1')
        self.assertEqual(['h3', 'h2', 'h1'], [
            host.host for host in self.order(
                asked, *map(make.host, ('h1', 'h2', 'h3')))])

    def test_vgpus_spread_to_the_most_units(self):
        self.config.config(weight_policy='spread', group='gpgpu_scheduler')
        self.cloud(vgpus('h1', 1, 1), vgpus('h2', 4, 2))
        self.assertEqual('h2', self.best(
            spec(CUSTOM_VGPU_A_Q4='1'), 'h1', 'h2'))

    def test_whole_gpus_keep_away_from_hosts_with_many_empty_ones(self):
        self.cloud(vgpus('h1', 4, 4, 4, 4), vgpus('h2', 4, 2, 2, 2))
        self.assertEqual('h2', self.best(
            spec(CUSTOM_GPU_A='1'), 'h1', 'h2'))

    def test_group_of_the_candidate_counts_if_two_offer_the_class(self):
        sent = make.groups('h1', free=0b0001)
        [group] = sent.groups
        other = dataclasses.replace(
            group, variant='B', provider_uuid='h1-b',
            types=(dataclasses.replace(group.types[0], free=0b1111),))
        self.cloud(dataclasses.replace(sent, groups=(group, other)),
                   make.groups('h2', free=0b0011))
        for provider, expected in (('h1-rp', 'h1'), ('h1-b', 'h2')):
            host = make.host('h1', [
                {'allocations': {provider: {}}, 'mappings': {}}])
            self.assertEqual(expected, self.order(
                spec(CUSTOM_GPU_A='1'), host, make.host('h2'))[0].host)

    def test_choices_in_a_row_fill_a_host_before_the_next(self):
        self.cloud(make.groups('h1'), make.groups('h2', free=0b0011))
        chosen = []
        for number in range(6):
            asked = spec(number, CUSTOM_GPU_A='1')
            best = self.order(asked, make.host('h1'), make.host('h2'))[0]
            best.consume_from_request(asked)
            chosen.append(best.host)
        self.assertEqual(['h2'] * 2 + ['h1'] * 4, chosen)

    def test_decision_sees_the_one_that_nova_has_not_finished(self):
        self.cloud(make.groups('h1'), make.groups('h2', free=0b0001))
        found = [self.best(spec(number, CUSTOM_GPU_A='1'), 'h1', 'h2')
                 for number in (1, 2)]
        self.assertEqual(['h2', 'h1'], found)
        # Nova tries the first one again, since Placement was busy.
        self.assertEqual(
            'h2', self.best(spec(1, CUSTOM_GPU_A='1'), 'h1', 'h2'))

    def test_other_weighers_decide_which_of_equal_hosts_is_expected(self):
        self.cloud(make.groups('h1'), make.groups('h2'))
        hosts = make.host('h1', used_ram_mb=1000), make.host('h2')
        best = self.order(spec(1, CUSTOM_GPU_A='1'), *hosts,
                          more=(ram.RAMWeigher(),))[0]
        [expected] = self.weigher._ranking.view.pending.of
        self.assertEqual(('h2', 'h2'), (best.host, expected))

    def test_choice_that_became_a_claim_counts_once(self):
        self.cloud(make.groups('h1'), make.groups('h2', free=0b0011))
        asked = spec(1, CUSTOM_GPU_A='1')
        hosts = make.host('h1'), make.host('h2')
        self.order(asked, *hosts)[0].consume_from_request(asked)
        self.change(make.groups('h2', free=0b0010, generation=2,
                                instances=('00000001',)))
        # One more fits on h2: it would not, were it subtracted twice.
        self.assertEqual('h2', self.best(
            spec(2, CUSTOM_GPU_A='1'), 'h1', 'h2'))

    def test_decision_sees_what_another_scheduler_chose(self):
        self.cloud(make.groups('h1'), make.groups('h2', free=0b0001))
        first, second = (spec(number, CUSTOM_GPU_A='1') for number in (1, 2))
        asked = request_view.read_request(first)
        self.api.changes[1] = dataclasses.replace(
            self.api.changes[1], choices=(scheduling.SchedulerChoice(
                scheduler='other', node_uuid='h2', request=asked,
                instance_uuid=first.instance_uuid),))
        self.filter.filter_all([], spec(3, CUSTOM_GPU_A='1'))
        self.assertEqual('h1', self.best(second, 'h1', 'h2'))

    def test_host_without_the_topology_left_is_last_but_not_refused(self):
        self.cloud(make.groups('h1', free=0b0111), make.groups('h2'))
        first = spec(1, CUSTOM_GPU_A='1', topology='same_numa')
        # GPU 2 alone on its node is taken first, and the pair stays.
        hosts = make.host('h1'), make.host('h2')
        self.order(first, *hosts)[0].consume_from_request(first)
        pairs = [spec(number, CUSTOM_GPU_A='2', topology='same_numa')
                 for number in (2, 3)]
        chosen = []
        for pair in pairs:
            order = self.order(pair, make.host('h1'), make.host('h2'))
            self.assertEqual(2, len(order))
            order[0].consume_from_request(pair)
            chosen.append(order[0].host)
        self.assertEqual(['h1', 'h2'], chosen)


    def test_capacity_of_a_host_that_filled_up_are_gone(self):
        self.cloud(*(make.groups(f'h{n}') for n in range(4)))
        asked = spec(CUSTOM_GPU_A='1')
        names = [f'h{n}' for n in range(4)]
        self.order(asked, *map(make.host, names))
        before = self.weigher._ranking._policy._scarcity._capacity
        self.change(*(make.groups(f'h{n}', free=0, generation=2)
                      for n in (2, 3)))
        self.order(asked, *map(make.host, names))
        after = self.weigher._ranking._policy._scarcity._capacity
        self.assertEqual([count // 2 for count in before], after)
        self.assertGreater(sum(after), 0)
