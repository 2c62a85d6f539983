# SPDX-License-Identifier: Apache-2.0
"""Tests of the mix of requests that all schedulers are asked for."""

import datetime
import itertools
import uuid
from unittest import mock

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.db import request_kind
from gpgpu_plugin.objects import scheduling
from tests.fixtures import clocks
from tests.unit.conductor import base

GPU = scheduling.RequestKind(8, 1024, 'CUSTOM_GPU_A', 2)
PLAIN = scheduling.RequestKind(1, 64)


NUMBERS = itertools.count()


def counted(kind, number):
    """Return requests of new instances."""
    return scheduling.ArrivedRequests(kind, tuple(
        str(uuid.UUID(int=next(NUMBERS))) for _ in range(number)))


class RequestsTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.now = 1_800_000_000.0
        self.useFixture(clocks.Clocks(
            lambda: datetime.datetime.fromtimestamp(
                self.now, datetime.UTC).replace(tzinfo=None)))
        self.requests = self.conductor()

    def conductor(self):
        return scheduler_feed.CountedMix(self.db, lambda: self.now)

    def store(self, *requests):
        self.requests.add(requests)
        self.requests.run_once()

    def shares(self, requests=None):
        found = (requests or self.requests).newer(0)
        total = sum(number for _, number in found.requests)
        return {kind: round(number / total, 3)
                for kind, number in found.requests}

    def test_few_requests_are_no_mix(self):
        self.store(counted(GPU, 49))
        self.assertIsNone(self.requests.newer(0))
        self.store(counted(GPU, 1))
        self.assertEqual({GPU: 1.0}, self.shares())

    def test_requests_of_all_calls_add_up(self):
        self.requests.add([counted(GPU, 30), counted(PLAIN, 10)])
        self.store(counted(GPU, 45))
        self.store(counted(PLAIN, 15))
        self.assertEqual({GPU: 0.75, PLAIN: 0.25}, self.shares())

    def test_requests_of_another_conductor_are_read(self):
        other = self.conductor()
        other.run_once()
        self.store(counted(GPU, 60))
        other.run_once()
        self.assertIsNone(other.newer(0))
        self.now += 61
        other.run_once()
        self.assertEqual({GPU: 1.0}, self.shares(other))

    def test_two_conductors_add_to_one_kind(self):
        other = self.conductor()
        for requests in (self.requests, other):
            requests.add([counted(GPU, 40)])
            requests.run_once()
        self.assertEqual(
            80, round(other.newer(0).requests[0].number))

    def test_request_counts_half_after_two_weeks(self):
        self.store(counted(GPU, 180))
        self.now += 14 * 86400
        self.store(counted(PLAIN, 90))
        self.assertEqual({GPU: 0.5, PLAIN: 0.5}, self.shares())
        self.assertEqual([90.0, 90.0], [
            round(number, 6) for _, number
            in self.requests.newer(0).requests])

    def test_version_is_newer_only_with_enough_requests(self):
        self.store(counted(GPU, 100))
        version = self.requests.newer(0).version
        self.assertIsNone(self.requests.newer(version))
        self.store(counted(PLAIN, 1))
        self.assertIsNone(self.requests.newer(version))
        self.store(counted(PLAIN, 99))
        self.assertIn(PLAIN, self.shares())
        self.assertIsNotNone(self.requests.newer(version))

    def test_requests_wait_while_the_database_does_not_answer(self):
        self.requests.add([counted(GPU, 60)])
        with mock.patch.object(
                self.db, 'write', side_effect=exception.DatabaseUnavailable(
                    reason='away')):
            self.requests.run_once()
        self.assertIsNone(self.requests.newer(0))
        self.requests.run_once()
        self.assertEqual({GPU: 1.0}, self.shares())

    def test_requests_that_the_database_refuses_are_dropped(self):
        self.requests.add([counted(GPU, 60)])
        with mock.patch.object(self.db, 'write', side_effect=ValueError):
            self.requests.run_once()
        self.requests.run_once()
        self.assertIsNone(self.requests.newer(0))

    def test_instance_counts_once_on_all_conductors(self):
        asked = counted(GPU, 60)
        self.store(asked)
        other = self.conductor()
        # Another scheduler asks for it, or Nova notifies of it.
        other.add([scheduling.ArrivedRequests(PLAIN, asked.instances),
                   asked, counted(PLAIN, 20)])
        other.run_once()
        self.assertEqual({GPU: 0.75, PLAIN: 0.25}, self.shares(other))

    def test_instance_counts_again_after_an_hour(self):
        asked = counted(GPU, 60)
        self.store(asked)
        self.now += 3601
        self.store(asked)
        with self.db.reader() as session:
            self.assertEqual(120, request_kind.arrivals(session))

    def test_what_cannot_be_stored_is_not_counted(self):
        self.store(
            scheduling.ArrivedRequests(
                GPU, ('x' * 37, '\ud800', '\0', 'i1', '')),
            counted(GPU._replace(resource_class='x' * 256), 1),
            counted(GPU._replace(units=2**31), 1),
            counted(GPU._replace(vcpus=-1), 1), counted(PLAIN, 60))
        self.assertEqual({PLAIN: 1.0}, self.shares())

    def test_instance_counts_once_however_its_uuid_is_written(self):
        asked = str(uuid.uuid5(uuid.NAMESPACE_DNS, 'i1'))
        self.store(counted(PLAIN, 59), scheduling.ArrivedRequests(
            GPU, (asked, asked.upper())))
        self.store(scheduling.ArrivedRequests(PLAIN, (f'{{{asked}}}',)))
        self.assertEqual({PLAIN: 0.983, GPU: 0.017}, self.shares())

    def test_no_more_requests_wait_than_the_limit(self):
        self.store(counted(GPU, scheduler_feed._MAX_WAITING + 1))
        with self.db.reader() as session:
            self.assertEqual(
                scheduler_feed._MAX_WAITING,
                request_kind.arrivals(session))
