# SPDX-License-Identifier: Apache-2.0
"""Tests of the state of a host that the policy sees."""

import dataclasses

from oslotest import base

from gpgpu_plugin.domain import weighing
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.scheduler_filters import pending
from gpgpu_plugin.scheduler_filters import scheduler_view
from gpgpu_plugin.scheduler_weights import ranking
from tests.unit.scheduler_filters import make


def known(*args, **kwargs):
    return scheduler_view.SchedulerHost(make.groups(*args, **kwargs))


def choice(count):
    return pending.PendingChoice(
        instance_uuid='x', at=0.0, request=request.Request(demands=(
            request.Demand(resource_class=make.RC, count=count),)))


class WeighedHostTest(base.BaseTestCase):

    def state(self, host, seen, *choices):
        [state] = ranking.RankedHost(
            host, seen, choices).states.values()
        return state

    def test_free_vcpus_and_ram_are_those_of_nova(self):
        host = make.host('h', vcpus_used=6, used_ram_mb=24)
        host.vcpus_total, host.total_usable_ram_mb = 10, 100
        host.free_ram_mb = 76
        self.assertEqual(
            weighing.HostCapacity(4000, 76, (1000,) * 4, 'A'),
            self.state(host, known('h')))

    def test_overcommitment_is_counted(self):
        host = make.host('h', vcpus_used=6)
        host.vcpus_total, host.cpu_allocation_ratio = 10, 4.0
        host.total_usable_ram_mb, host.ram_allocation_ratio = 100, 1.5
        host.free_ram_mb = -20
        state = self.state(host, known('h'))
        self.assertEqual((34000, 30), (state.milli_vcpus, state.memory_mib))

    def test_host_that_is_full_has_nothing_less_than_nothing(self):
        host = make.host('h', vcpus_used=1000, used_ram_mb=1 << 30)
        state = self.state(host, known('h'))
        self.assertEqual((0, 0), (state.milli_vcpus, state.memory_mib))

    def test_only_free_gpus_count(self):
        self.assertEqual((1000,) * 2, self.state(
            make.host('h'), known('h', free=0b1010)).free)

    def test_gpu_in_part_is_worth_its_largest_type(self):
        sent = make.groups('h')
        [group] = sent.groups
        types = (
            scheduling.TypeMasks(resource_class='Q1', free=0b111, most=16,
                                 available=(16, 12, 3, 0)),
            scheduling.TypeMasks(resource_class='Q4', free=0b011, most=4,
                                 available=(4, 3, 0, 0)),
            scheduling.TypeMasks(resource_class='W', free=0b001))
        sent = dataclasses.replace(
            sent, groups=(dataclasses.replace(group, types=types),))
        self.assertEqual((187, 750, 1000), self.state(
            make.host('h'), scheduler_view.SchedulerHost(sent)).free)

    def test_pending_choices_are_subtracted(self):
        self.assertEqual((1000,), self.state(
            make.host('h'), known('h'), choice(2), choice(1)).free)

    def test_update_keeps_vcpus_and_ram(self):
        host = ranking.RankedHost(
            make.host('h', vcpus_used=90), known('h'), ())
        host.scores[1] = ranking.Score(1.0, 0)
        host.update(known('h', free=0b1), (choice(1),))
        [state] = host.states.values()
        self.assertEqual(((), 6000), (state.free, state.milli_vcpus))
        self.assertEqual({}, host.scores)
