# SPDX-License-Identifier: Apache-2.0
"""Tests of the rows of kinds of requests."""

from gpgpu_plugin.db import request_kind
from gpgpu_plugin.objects import scheduling
from tests.unit.conductor import base

NOW = 1_800_000_000.0


def counted(number, *kind):
    return scheduling.CountedRequests(
        scheduling.RequestKind(*kind), number)


class RequestKindTest(base.ConductorTestCase):

    def test_kinds_differ_in_each_part(self):
        kinds = [(1, 1, 'A', 1), (2, 1, 'A', 1), (1, 2, 'A', 1),
                 (1, 1, 'B', 1), (1, 1, 'A', 2), (1, 1, '', 0)]
        with self.db.writer() as session:
            for _ in range(2):
                request_kind.add(
                    session, [counted(1, *kind) for kind in kinds], NOW)
            self.assertEqual(12, request_kind.arrivals(session))
            self.assertEqual({counted(2.0, *kind) for kind in kinds}, set(
                request_kind.most_frequent(session, 10, NOW)))

    def test_most_frequent_kinds_come_first(self):
        with self.db.writer() as session:
            request_kind.add(session, [
                counted(number, number, 1) for number in (3, 9, 5)], NOW)
            self.assertEqual([9, 5], [
                kind.vcpus for kind, _ in
                request_kind.most_frequent(session, 2, NOW)])

    def test_many_kinds_without_gpus_hide_none_with(self):
        with self.db.writer() as session:
            request_kind.add(session, [
                counted(100, vcpus, 1, '', 0) for vcpus in range(5)], NOW)
            request_kind.add(session, [counted(1, 7, 1, 'A', 1)], NOW)
            self.assertEqual([7, 0, 1], [
                kind.vcpus for kind, _ in
                request_kind.most_frequent(session, 2, NOW)])

    def test_no_request(self):
        with self.db.writer() as session:
            self.assertEqual(0, request_kind.arrivals(session))
            self.assertEqual((), request_kind.most_frequent(session, 9, NOW))

    def test_weights_of_decades_are_no_overflow(self):
        with self.db.writer() as session:
            for years in (0, 30):
                request_kind.add(session, [counted(1, years, 1)],
                                 NOW + years * 365 * 86400)
            [last, first] = request_kind.most_frequent(
                session, 9, NOW + 30 * 365 * 86400)
        self.assertEqual((30, 1.0), (last.kind.vcpus, last.number))
        self.assertLess(first.number, 1e-200)
