# SPDX-License-Identifier: Apache-2.0
"""Tests of what schedulers and conductors say to each other."""

import datetime

from oslotest import base

from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import scheduling


class FilterRefusalTest(base.BaseTestCase):

    def refusal(self, **reasons):
        return scheduling.FilterRefusal(
            filter='GpuFilter', at=datetime.datetime(2026, 11, 24, 12),
            instance_uuid='i1', project_id=None, request_id=None,
            reasons=reasons, passed=2, detail='h1: none available')

    def test_reason_is_the_most_frequent_one(self):
        self.assertEqual('b', self.refusal(a=1, b=3, c=2).reason)
        # The same whatever the order.
        self.assertEqual('a', self.refusal(b=3, a=3).reason)

    def test_text_has_all_numbers(self):
        self.assertEqual(
            'GpuFilter refused 4 hosts (a 1, b 3) and left 2; the last one: '
            'h1: none available', self.refusal(b=3, a=1).text)

    def test_refusal_survives_the_wire(self):
        refusal = self.refusal(a=1)
        self.assertEqual(refusal, codec.received(
            scheduling.FilterRefusal, codec.to_primitive(refusal)))
