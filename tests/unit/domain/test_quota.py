# SPDX-License-Identifier: Apache-2.0
"""Tests of the quota of refusals."""

import fixtures
from oslotest import base

from gpgpu_plugin.domain import event


class QuotaTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.now = 0.0
        self.quota = event.Quota(lambda: self.now)

    def taken(self, key, number):
        return sum(self.quota.take(key) for _ in range(number))

    def test_each_key_has_its_quota(self):
        for key in ('p1', 'p2'):
            self.assertEqual(event.QUOTA_LIMIT,
                             self.taken(key, event.QUOTA_LIMIT + 5))

    def test_quota_is_that_of_a_window(self):
        self.taken('p1', 1)
        self.now = event.QUOTA_WINDOW - 1
        self.assertEqual(event.QUOTA_LIMIT - 1,
                         self.taken('p1', event.QUOTA_LIMIT))
        self.now = event.QUOTA_WINDOW
        self.assertEqual(event.QUOTA_LIMIT,
                         self.taken('p1', event.QUOTA_LIMIT + 5))

    def test_memory_is_bounded(self):
        self.useFixture(fixtures.MonkeyPatch(f'{event.__name__}._KEYS', 2))
        for key in ('p1', 'p2', 'p3'):
            self.taken(key, event.QUOTA_LIMIT)
        self.assertEqual({'p2', 'p3'}, set(self.quota._used))
