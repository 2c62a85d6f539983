# SPDX-License-Identifier: Apache-2.0
"""Tests of what the filter leaves for the weigher."""

from nova import objects
from nova.scheduler import host_manager
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.scheduler_filters import gpu_filter
from gpgpu_plugin.scheduler_filters import request_view
from gpgpu_plugin.scheduler_filters import scheduler_view
from tests.unit.scheduler_filters import make

objects.register_all()

SERVER = '11111111-1111-1111-1111-111111111111'


def spec(**specs):
    return objects.RequestSpec(
        instance_uuid=SERVER, project_id='p1', scheduler_hints={}, image=None,
        numa_topology=None, flavor=objects.Flavor(
            vcpus=4, memory_mb=1024, extra_specs={
                f'resources:{name}': value for name, value in specs.items()}))


class DecisionTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.api = make.FakeAPI(
            make.changes(make.groups('h1')), make.changes(), make.changes())
        self.filter = gpu_filter.GpuFilter(
            scheduler_view.SchedulerViewCache(self.api))

    def passed(self, asked, *hosts):
        return list(self.filter.filter_all(hosts, asked))

    def test_request_and_view_are_remembered(self):
        asked = spec(CUSTOM_GPU_A='2')
        self.passed(asked, make.host('h1'))
        found = request_view.decision_of(asked)
        self.assertEqual((2, None), (
            found.request.demands[0].count, found.guest_nodes))
        self.assertIn('h1', found.view.hosts)

    def test_request_without_gpus_has_the_last_view_without_a_call(self):
        self.passed(spec(CUSTOM_GPU_A='2'), make.host('h1'))
        asked = spec()
        self.passed(asked, make.host('h1'))
        self.assertFalse(request_view.decision_of(asked).request)
        self.assertIn('h1', request_view.decision_of(asked).view.hosts)
        self.assertEqual(1, len(self.api.asked))

    def test_request_without_gpus_before_the_first_view(self):
        asked = spec()
        list(gpu_filter.GpuFilter().filter_all([make.host('h1')], asked))
        self.assertIsNone(request_view.decision_of(asked).view)

    def test_decision_goes_if_the_conductor_does_not_answer(self):
        asked = spec(CUSTOM_GPU_A='2')
        self.passed(asked, make.host('h1'))
        self.api.changes = [
            exception.ConductorUnavailable(method='x', timeout=1)]
        self.passed(asked, make.host('h1'))
        self.assertIsNone(request_view.decision_of(asked))

    def test_chosen_host_is_pending(self):
        asked = spec(CUSTOM_GPU_A='2')
        host = make.host('h1')
        self.passed(asked, host)
        view = request_view.decision_of(asked).view
        self.assertEqual({}, dict(view.pending.of))
        host.consume_from_request(asked)
        [choice] = view.pending.of['h1']
        self.assertEqual((SERVER, 2), (
            choice.instance_uuid, choice.request.demands[0].count))
        self.assertEqual(4, host.vcpus_used)

    def test_host_chosen_twice_is_consumed_once_each(self):
        asked = spec(CUSTOM_GPU_A='1')
        host = make.host('h1')
        for number in (1, 2):
            asked.instance_uuid = SERVER.replace('1', str(number))
            self.passed(asked, host)
            host.consume_from_request(asked)
        self.assertEqual(8, host.vcpus_used)
        self.assertEqual(
            2, len(request_view.decision_of(asked).view.pending.of['h1']))

    def test_host_of_nova_is_watched_and_stays_what_it_is(self):
        host = host_manager.HostState('h1', 'h1', None)
        for _ in range(2):
            request_view.watch_host(host)
        self.assertIsInstance(host, host_manager.HostState)
        self.assertEqual('HostState', type(host).__name__)
        self.assertEqual(
            'HostState', type(host).__mro__[-2].__name__)
        self.assertEqual(4, len(type(host).__mro__))

    def test_request_that_travels_on_is_as_nova_made_it(self):
        asked = spec(CUSTOM_GPU_A='1')
        before = asked.obj_to_primitive()
        self.passed(asked, make.host('h1'))
        self.assertEqual(before, asked.obj_to_primitive())
