# SPDX-License-Identifier: Apache-2.0
"""Tests of requests that wait for a conductor to count them."""

import types

import fixtures
from oslotest import base

from gpgpu_plugin.domain import event
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.scheduler_filters import conductor_messages
from gpgpu_plugin.scheduler_filters import scheduler_view
from tests.unit.scheduler_filters import make

KIND = scheduling.RequestKind(8, 1024, make.RC, 2)
PLAIN = scheduling.RequestKind(1, 64)


class RequestsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.requests = conductor_messages.RequestCounter()

    def test_requests_are_sent_by_kind(self):
        for instance, kind in (('i1', KIND), ('i2', PLAIN), ('i3', KIND)):
            self.requests.add(instance, kind)
        self.assertEqual(((KIND, ('i1', 'i3')), (PLAIN, ('i2',))),
                         self.requests.arrived())

    def test_instance_is_sent_once(self):
        for _ in range(3):
            self.requests.add('i1', KIND)
        self.assertEqual(((KIND, ('i1',)),), self.requests.arrived())
        self.requests.recorded(self.requests.arrived())
        self.requests.add('i1', KIND)
        self.assertEqual((), self.requests.arrived())

    def test_oldest_instance_is_forgotten_if_there_are_many(self):
        self.useFixture(fixtures.MonkeyPatch(
            f'{conductor_messages.__name__}.KNOWN_INSTANCES', 2))
        for instance in ('i1', 'i2', 'i3'):
            self.requests.add(instance, KIND)
        self.requests.recorded(self.requests.arrived())
        for instance in ('i3', 'i1'):
            self.requests.add(instance, KIND)
        self.assertEqual(((KIND, ('i1',)),), self.requests.arrived())

    def test_recorded_requests_go_and_later_ones_stay(self):
        self.requests.add('i1', KIND)
        sent = self.requests.arrived()
        self.requests.add('i2', KIND)
        self.requests.recorded(sent)
        self.assertEqual(((KIND, ('i2',)),), self.requests.arrived())

    def test_no_more_requests_wait_or_are_sent_than_the_limits(self):
        for name, limit in (('MAX_REQUESTS', 3), ('SENT_REQUESTS', 2)):
            self.useFixture(fixtures.MonkeyPatch(
                f'{conductor_messages.__name__}.{name}', limit))
        for instance in ('i1', 'i2', 'i3', 'i4'):
            self.requests.add(instance, KIND)
        for expected in (('i1', 'i2'), ('i3',)):
            [sent] = self.requests.arrived()
            self.assertEqual(expected, sent.instances)
            self.requests.recorded([sent])

    def test_project_has_a_quota_of_requests_that_no_host_can_take(self):
        self.useFixture(fixtures.MonkeyPatch(f'{event.__name__}.QUOTA_LIMIT',
                                             2))
        for number in range(4):
            self.requests.add(f'i{number}', KIND, 'p1')
        self.requests.add('i4', PLAIN, 'p1')
        self.requests.add('i5', KIND, 'p2')
        self.requests.add('i6', KIND)
        self.assertEqual(
            ((KIND, ('i0', 'i1', 'i5', 'i6')), (PLAIN, ('i4',))),
            self.requests.arrived())
        # It may find a host later.
        self.requests.add('i3', KIND)
        self.assertIn('i3', self.requests.arrived()[0].instances)

    def test_kind_is_of_the_flavor_and_the_largest_demand(self):
        flavor = types.SimpleNamespace(vcpus=8, memory_mb=1024)
        demands = tuple(request.Demand(resource_class=name, count=count)
                        for name, count in (('CUSTOM_B', 1), (make.RC, 2)))
        self.assertEqual(KIND, conductor_messages.request_kind(
            flavor, request.Request(demands=demands)))
        self.assertEqual(
            scheduling.RequestKind(8, 1024),
            conductor_messages.request_kind(flavor, request.Request()))


class CacheTest(base.BaseTestCase):

    def mix(self, version):
        return scheduling.RequestMix(version=version, requests=(
            scheduling.CountedRequests(KIND, 1.0),))

    def test_requests_are_sent_until_they_are_recorded(self):
        api = make.FakeAPI(make.changes(), make.changes(recorded=True),
                           make.changes())
        cache = scheduler_view.SchedulerViewCache(api)
        cache.requests.add('i1', KIND)
        for _ in range(3):
            cache.refresh()
        self.assertEqual(
            [((KIND, ('i1',)),), ((KIND, ('i1',)),), ()], api.requests)

    def test_mix_is_kept_and_its_version_is_named(self):
        api = make.FakeAPI(
            make.changes(), make.changes(mix=self.mix(3)), make.changes(),
            make.changes(mix=self.mix(4)), make.changes())
        cache = scheduler_view.SchedulerViewCache(api)
        versions = [getattr(cache.refresh().mix, 'version', None)
                    for _ in range(5)]
        self.assertEqual([None, 3, 3, 4, 4], versions)
        self.assertEqual([0, 0, 3, 3, 4], api.mixes)

    def test_mix_of_another_database_is_forgotten(self):
        api = make.FakeAPI(
            make.changes(mix=self.mix(9)), make.changes(anew=True),
            make.changes())
        cache = scheduler_view.SchedulerViewCache(api)
        for _ in range(3):
            view = cache.refresh()
        self.assertIsNone(view.mix)
        self.assertEqual([0, 9, 0], api.mixes)
