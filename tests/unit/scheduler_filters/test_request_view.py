# SPDX-License-Identifier: Apache-2.0
"""Tests of requests and of the view, as filters read them."""

import subprocess
import sys
from unittest import mock

from nova import objects
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.scheduler_filters import request_view
from gpgpu_plugin.scheduler_filters import scheduler_view
from tests.unit.scheduler_filters import make

objects.register_all()


def spec(image_policy=None, **specs):
    return objects.RequestSpec(
        flavor=objects.Flavor(extra_specs={
            key.replace('__', ':'): value for key, value in specs.items()}),
        image=objects.ImageMeta.from_dict({'properties': {
            'hw_pci_numa_affinity_policy': image_policy}
            if image_policy else {}}))


class RequestViewTest(base.BaseTestCase):

    def test_policy_of_the_image_is_read_beside_the_flavor(self):
        for image, flavor, expected in (
                (None, {}, None), ('socket', {}, 'socket'),
                (None, {'hw__pci_numa_affinity_policy': 'legacy'}, 'legacy'),
                ('legacy', {'hw__pci_numa_affinity_policy': 'legacy'},
                 'legacy')):
            self.assertEqual(expected, request_view.read_request(
                spec(image, **flavor)).pci_numa_policy)

    def test_policies_that_differ_are_refused(self):
        self.assertRaises(
            exception.Invalid, request_view.read_request,
            spec('socket', hw__pci_numa_affinity_policy='legacy'))

    def test_classes_of_others_are_left_out(self):
        view = scheduler_view.SchedulerView()
        view.update([make.groups('h')])
        demands = [request.Demand(resource_class=name, count=1) for name in (
            'CUSTOM_FPGA', make.RC, 'CUSTOM_GPU_UNKNOWN')]
        self.assertEqual(
            tuple(demands[1:]), view.own_demands(
                request.Request(demands=tuple(demands))).demands)

    def test_view_comes_from_the_cache(self):
        api = make.FakeAPI(make.changes(make.groups('h')))
        source = request_view.ViewSource(
            scheduler_view.SchedulerViewCache(api))
        self.assertIn('h', source.refresh().hosts)

    def test_view_and_refusals_are_read_and_sent_by_time(self):
        unavailable = exception.ConductorUnavailable(method='x', timeout=1)
        api = make.FakeAPI(
            unavailable, ValueError('x'), make.changes(make.groups('h')),
            make.changes(recorded=True), make.changes(), make.changes())
        now = [0.0]
        source = request_view.ViewSource(scheduler_view.SchedulerViewCache(
            api, clock=lambda: now[0]))
        # What fails is tried again at the next look.
        for left in (5, 4, 3, 3):
            source.read()
            self.assertEqual(left, len(api.changes))
        self.assertIn('h', source.last().hosts)
        refusal = mock.Mock()
        source.refused(refusal)
        for seconds, left in ((1, 2), (1, 2), (10, 0), (1, 0)):
            now[0] += seconds
            source.read()
            self.assertEqual(left, len(api.changes), seconds)
        self.assertEqual(
            [(), (), (), (refusal,), (), ()], api.refusals)

    def test_first_request_waits_for_one_attempt_alone(self):
        api = make.FakeAPI(
            exception.ConductorUnavailable(method='x', timeout=1))
        source = request_view.ViewSource(
            scheduler_view.SchedulerViewCache(api))
        for _ in range(2):
            self.assertEqual({}, source.last().hosts)
        self.assertEqual([(0, None)], api.asked)

    def test_thread_ends_with_its_source(self):
        source = request_view.ViewSource(scheduler_view.SchedulerViewCache(
            make.FakeAPI(make.changes())))
        source.begin()
        thread = source.thread
        del source
        thread.join(300)
        self.assertFalse(thread.is_alive())

    def test_worker_that_is_forked_reads_the_view_before_a_decision(self):
        # A process of its own: threads of this one would not be forked.
        done = subprocess.run(
            [sys.executable, '-c', WORKER], capture_output=True, text=True,
            timeout=300, check=False)
        self.assertEqual((0, 'read by the worker\n'),
                         (done.returncode, done.stdout), done.stderr)


WORKER = """
import os, threading
from unittest import mock
from gpgpu_plugin.scheduler_filters import gpu_filter

parent, filled = os.getpid(), threading.Event()

class Cache:
    def keep_fresh(self, period):
        assert os.getpid() != parent
        print('read by the worker', flush=True)
        filled.set()

subject = gpu_filter.GpuFilter(Cache())
child = os.fork()
if child == 0:
    os._exit(0 if filled.wait(200) else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
