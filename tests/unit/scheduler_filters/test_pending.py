# SPDX-License-Identifier: Apache-2.0
"""Tests of the choices that the conductor's answer does not show yet."""

import dataclasses

from oslotest import base

from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.scheduler_filters import pending
from gpgpu_plugin.scheduler_filters import scheduler_view
from tests.unit.scheduler_filters import make

ONE = request.Request(demands=(
    request.Demand(resource_class=make.RC, count=1),))
SERVER = '11111111-1111-1111-1111-111111111111'
OTHER = '22222222-1111-1111-1111-111111111111'


class PendingChoicesTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.now = 0.0
        self.pending = pending.PendingChoices(lambda: self.now)

    def instances(self):
        return {node: [choice.instance_uuid for choice in choices]
                for node, choices in self.pending.of.items()}

    def test_choices_of_a_host_add_up(self):
        self.pending.add('h1', SERVER, ONE)
        self.pending.add('h1', OTHER, ONE)
        self.assertEqual({'h1': [SERVER, OTHER]}, self.instances())

    def test_later_choice_for_an_instance_voids_the_earlier(self):
        self.pending.add('h1', SERVER, ONE)
        self.pending.add('h2', SERVER, ONE)
        self.assertEqual({'h2': [SERVER]}, self.instances())

    def test_expected_choice_is_replaced_by_the_one_that_is_made(self):
        self.pending.expect('h1', SERVER, ONE)
        self.assertEqual({'h1': [SERVER]}, self.instances())
        self.pending.add('h2', SERVER, ONE)
        self.assertEqual({'h2': [SERVER]}, self.instances())

    def test_choice_that_was_made_stands_while_alternates_are_found(self):
        self.pending.add('h1', SERVER, ONE)
        self.pending.withdraw(SERVER)
        self.pending.expect('h2', SERVER, ONE)
        self.assertEqual({'h1': [SERVER]}, self.instances())

    def test_expected_choice_of_an_instance_is_withdrawn(self):
        self.pending.expect('h1', SERVER, ONE)
        self.pending.expect('h1', OTHER, ONE)
        self.pending.withdraw(SERVER)
        self.assertEqual({'h1': [OTHER]}, self.instances())

    def test_choice_goes_when_the_host_has_the_instance(self):
        self.pending.add('h1', SERVER, ONE)
        self.pending.add('h1', OTHER, ONE)
        self.pending.confirm(make.groups('h1', generation=2))
        self.assertEqual({'h1': [SERVER, OTHER]}, self.instances())
        self.pending.confirm(make.groups('h1', instances=('11111111',)))
        self.assertEqual({'h1': [OTHER]}, self.instances())
        self.pending.confirm(make.groups('h1', instances=('22222222',)))
        self.assertEqual({}, self.instances())

    def test_choice_that_never_became_a_claim_expires(self):
        self.pending.add('h1', SERVER, ONE)
        self.now = scheduling.LIFETIME - 1
        self.pending.expire()
        self.assertEqual({'h1': [SERVER]}, self.instances())
        self.now += 2
        self.pending.expire()
        self.assertEqual({}, self.instances())

    def test_host_without_a_change_keeps_its_tuple(self):
        self.pending.add('h1', SERVER, ONE)
        before = self.pending.of['h1']
        self.pending.expire()
        self.pending.add('h2', OTHER, ONE)
        self.pending.confirm(make.groups('h1'))
        self.assertIs(before, self.pending.of['h1'])

    def test_each_choice_is_observed_once(self):
        seen = []
        observed = pending.PendingChoices(
            observer=lambda node, instance, _: seen.append((node, instance)))
        observed.expect('h1', SERVER, ONE)
        observed.add('h1', SERVER, ONE)
        self.assertEqual([('h1', SERVER)], seen)
        observed.expect('h1', OTHER, ONE)
        observed.add('h2', OTHER, ONE)
        self.assertEqual([('h1', OTHER), ('h2', OTHER)], seen[1:])
        # While alternates are found.
        observed.expect('h3', SERVER, ONE)
        observed.add_other('h4', 'i3', ONE)
        self.assertEqual(3, len(seen))

    def test_choice_of_another_scheduler_is_added_once(self):
        self.pending.add_other('h1', SERVER, ONE)
        before = self.pending.of['h1']
        self.now += 1
        self.pending.add_other('h1', SERVER, ONE)
        self.assertIs(before, self.pending.of['h1'])
        self.pending.add_other('h2', SERVER, ONE)
        self.assertEqual({'h2': [SERVER]}, self.instances())

    def test_answer_of_the_conductor_confirms(self):
        view = scheduler_view.SchedulerView()
        view.update([make.groups('h1')])
        view.pending.add('h1', SERVER, ONE)
        view.update([dataclasses.replace(
            make.groups('h1', generation=2), instances=('11111111',))])
        self.assertEqual({}, dict(view.pending.of))
