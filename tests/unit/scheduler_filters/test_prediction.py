# SPDX-License-Identifier: Apache-2.0
"""Tests of what a pending choice is expected to take."""

import collections
import dataclasses

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import feasibility
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.scheduler_filters import pending
from tests.unit.domain.allocation import base as allocation
from tests.unit.scheduler_filters import make

_SWITCH = request.GPUTopology.SAME_SWITCH


def asked(count, topology=request.GPUTopology.ANY, resource_class=make.RC):
    return request.Request(topology=topology, demands=(request.Demand(
        resource_class=resource_class, count=count),))


class PredictionTest(base.BaseTestCase):

    def free(self, sent, *requests):
        for asked_for in requests:
            sent = pending.without_choice(sent, asked_for)
        [group] = sent.groups
        return group.types[0].free

    def test_gpus_come_from_the_node_that_they_fill_the_most(self):
        # Node 0 has GPUs 0 and 1, node 1 has 2 and 3.
        for free, count, expected in (
                (0b1111, 2, 0b1100), (0b1101, 1, 0b1100),
                (0b0111, 2, 0b0100), (0b1111, 3, 0b1000),
                (0b1111, 4, 0), (0b0001, 2, 0)):
            self.assertEqual(expected, self.free(
                make.groups('h', free=free), asked(count)), bin(free))

    def test_gpus_of_a_switch(self):
        self.assertEqual(0b1101, self.free(
            make.groups('h'), asked(1, _SWITCH)) ^ 0b0011)

    def test_gpus_of_a_fabric_are_the_partition_that_breaks_the_least(
            self):
        for free, count, expected in (
                (0b1111, 1, 0b1110), (0b1101, 1, 0b1100),
                (0b0111, 2, 0b0100), (0b1111, 4, 0)):
            for topology, fabric in ((request.GPUTopology.ANY, True),
                                     (request.GPUTopology.LINKED, False)):
                self.assertEqual(expected, self.free(
                    make.linked('h', free, fabric), asked(count, topology)))

    def test_choices_add_up(self):
        self.assertEqual(0b1000, self.free(
            make.groups('h'), asked(2), asked(1)))

    def test_units_come_from_the_gpu_in_use(self):
        sent = pending.without_choice(make.groups(
            'h', free=0b0011, available=(4, 2, 0, 0)), asked(3))
        [offer] = sent.groups[0].types
        self.assertEqual((0b0001, (3, 0, 0, 0)), (
            offer.free, offer.available))

    def test_other_types_lose_the_gpu(self):
        sent = make.groups('h', free=0b0011, available=(4, 4, 0, 0))
        [group] = sent.groups
        whole = scheduling.TypeMasks(resource_class='CUSTOM_GPU_W', free=0b11)
        sent = dataclasses.replace(sent, groups=(dataclasses.replace(
            group, types=(*group.types, whole)),))
        [group] = pending.without_choice(sent, asked(1)).groups
        self.assertEqual([0b11, 0b10], [offer.free for offer in group.types])
        [group] = pending.without_choice(
            sent, asked(1, resource_class='CUSTOM_GPU_W')).groups
        self.assertEqual([0b10, 0b10], [offer.free for offer in group.types])

    def test_class_of_no_group_takes_nothing(self):
        sent = make.groups('h')
        self.assertEqual(sent, pending.without_choice(
            sent, asked(1, resource_class='CUSTOM_FPGA')))

    @hypothesis.given(
        st.lists(st.integers(0, 4), min_size=4, max_size=4),
        st.integers(1, 20), st.sampled_from(request.GPUTopology))
    def test_as_many_units_go_as_are_asked_for(self, units, count, topology):
        free = sum(1 << gpu for gpu, number in enumerate(units) if number)
        sent = pending.without_choice(make.groups(
            'h', free=free, available=tuple(units)), asked(count, topology))
        [offer] = sent.groups[0].types
        self.assertEqual(max(0, sum(units) - count), sum(offer.available))
        self.assertEqual(offer.free, sum(
            1 << gpu for gpu, number in enumerate(offer.available) if number))


@st.composite
def claims(draw):
    """Draw GPUs of a host, a request of one class, and the group's policy."""
    # What drivers report is known to the claim alone.
    gpus = [dataclasses.replace(gpu, driver_available=None)
            for gpu in draw(allocation.hosts(max_gpus=5))]
    return gpus, allocation.request(
        {draw(st.sampled_from(['WHOLE', 'V8', 'V4'])):
         draw(st.integers(1, 5))},
        topology=draw(st.sampled_from([
            request.GPUTopology.ANY, request.GPUTopology.SAME_NUMA, _SWITCH])),
        allocation_policy=draw(st.sampled_from([
            None, allocation.DEPTH, allocation.BREADTH])),
    ), draw(allocation.POLICIES)


def masks(gpus, policy):
    """Return a group of GPUs as schedulers know it."""
    offers = allocation.offers(gpus)
    found = feasibility.masks(list(offers.values()))
    return scheduling.GroupMasks(
        variant='A', provider_uuid='rp', allocation_policy=policy,
        numa=found[0].numa, switches=found[0].switches, alone=found[0].alone,
        types=tuple(scheduling.TypeMasks(
            resource_class=name, free=mask.free, available=mask.available,
            most=max(gpu.max_instances(offer.vgpu_type) for gpu in gpus))
            for (name, offer), mask in zip(
                offers.items(), found, strict=True)))


def claimed(gpus, asked_for, policy):
    """Return how many units the claim takes of each GPU; empty: none."""
    [demand] = asked_for.demands
    try:
        selected = allocate.allocate(allocation.offers(gpus), asked_for, {
            demand.resource_class: policy})
    except request.Unsatisfiable:
        return {}
    numbers = {gpu.id: number for number, gpu in enumerate(gpus)}
    return dict(collections.Counter(
        numbers[selection.gpu_id]
        for selection in selected[demand.resource_class]))


class ClaimTest(base.BaseTestCase):
    """The weigher expects the GPUs that the claim takes."""

    @hypothesis.given(claims())
    def test_claim_takes_what_the_weigher_expects(self, drawn):
        gpus, asked_for, policy = drawn
        # So are the placements of vGPUs of several sizes on one GPU.
        hypothesis.assume(gpus[0].mix_policy in (
            vgpu.VGPUMixPolicy.SAME_TYPE,
            vgpu.VGPUMixPolicy.EQUAL_SIZE))
        [demand] = asked_for.demands
        self.assertEqual(
            claimed(gpus, asked_for, policy), pending.chosen(
                masks(gpus, policy), demand, asked_for))
