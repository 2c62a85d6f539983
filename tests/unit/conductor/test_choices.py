# SPDX-License-Identifier: Apache-2.0
"""Tests of the choices that conductors keep for schedulers."""

import functools

import fixtures
from oslotest import base as oslo_base

from gpgpu_plugin import context
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor import service
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import patience
from tests.unit.conductor import base


def choice(instance='i1', node='n1'):
    return scheduling.SchedulerChoice(
        scheduler='s1', node_uuid=node, instance_uuid=instance,
        request=request.Request(
            demands=(request.Demand(resource_class='PGPU', count=2),),
            topology=request.GPUTopology.SAME_NUMA))


class ChoicesTest(oslo_base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.choices = scheduler_feed.RecentChoices(lambda: self.now)

    def test_choices_of_the_last_seconds_in_their_order(self):
        for name in ('i1', 'i2', 'i3'):
            self.choices.add([choice(name)])
            self.now += 2
        self.assertEqual((choice('i2'), choice('i3')),
                         self.choices.newer_than(4.5))
        self.assertEqual((), self.choices.newer_than(1))

    def test_choice_of_more_than_a_minute_ago_is_forgotten(self):
        self.choices.add([choice('i1')])
        self.now += scheduling.LIFETIME + 1
        self.assertEqual((), self.choices.newer_than(1e9))
        self.choices.add([choice('i2')])
        self.assertEqual(1, len(self.choices._known))

    def test_newest_stay_if_there_are_too_many(self):
        self.choices.add(
            [choice(f'i{number}')
             for number in range(scheduler_feed._MAX_CHOICES + 1)])
        found = self.choices.newer_than(1)
        self.assertEqual((scheduler_feed._MAX_CHOICES, 'i1'),
                         (len(found), found[0].instance_uuid))


class ManyConductorsTest(base.ConductorTestCase):

    def test_each_conductor_knows_what_a_scheduler_chose(self):
        self.conf.set_override('topic_prefix', self.id()[-60:], 'gpgpu')
        conductors = [self.conductor()]
        api = conductor_client.ConductorAPI(self.conf)
        self.useFixture(fixtures.MonkeyPatch(
            'socket.gethostname', lambda: 'other'))
        conductors.append(self.conductor())
        api.chosen(context.admin(), (choice(),))
        for conductor in conductors:
            self.assertTrue(patience.wait_until(functools.partial(
                conductor.choices.newer_than, 60.0)))
        found = api.changes_since(context.admin(), 0, (), None, period=60.0)
        self.assertEqual((choice(),), found.choices)

    def conductor(self):
        made = service.ConductorService(
            self.conf, rpc_transport.get_transport(self.conf), self.db)
        made.start()
        self.addCleanup(made.stop)
        return made
