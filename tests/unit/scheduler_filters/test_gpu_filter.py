# SPDX-License-Identifier: Apache-2.0
"""Tests of GpuFilter: one call a decision, a reason per refusal."""

import logging

import fixtures
from nova import objects
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin import scheduler_filters
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.scheduler_filters import gpu_filter
from gpgpu_plugin.scheduler_filters import request_view
from gpgpu_plugin.scheduler_filters import scheduler_view
from tests.unit.scheduler_filters import make

objects.register_all()

groups, FakeAPI = make.groups, make.FakeAPI


host = make.host


class GpuFilterTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            'gpgpu_plugin.scheduler_filters', level=logging.DEBUG))

    def spec(self, rebuild=False, **specs):
        hints = {'_nova_check_type': ['rebuild']} if rebuild else {}
        return objects.RequestSpec(
            instance_uuid='11111111-1111-1111-1111-111111111111',
            project_id='p1',
            flavor=objects.Flavor(vcpus=1, memory_mb=64, extra_specs={
                key.replace('__', ':'): value
                for key, value in specs.items()}), scheduler_hints=hints,
            image=None, numa_topology=None)

    def passed(self, api, spec, *hosts):
        subject = gpu_filter.GpuFilter(scheduler_view.SchedulerViewCache(api))
        return [host.host for host in subject.filter_all(hosts, spec)]

    def view(self, *hosts):
        return FakeAPI(make.changes(*hosts))

    def test_free_gpus_decide_and_one_call_is_made(self):
        api = self.view(groups('h1'), groups('h2', free=0b1))
        self.assertEqual(['h1'], self.passed(
            api, self.spec(resources__CUSTOM_GPU_A='2'),
            host('h1'), host('h2')))
        self.assertEqual([(0, None)], api.asked)
        self.assertIn('GpuFilter refuses h2: not_enough_available '
                      '(2 of CUSTOM_GPU_A requested, 1 available)',
                      self.log.output)

    def test_refused_hosts_are_one_record_with_reasons_and_numbers(self):
        cache = scheduler_view.SchedulerViewCache(self.view(
            groups('h1'), groups('h2', free=0b1), groups('h3', free=0)))
        subject = gpu_filter.GpuFilter(cache)
        spec = self.spec(resources__CUSTOM_GPU_A='2')
        list(subject.filter_all(
            [host('h1'), host('h2'), host('h3'), host('h4')], spec))
        [found] = cache.refused.oldest()
        self.assertEqual(
            (spec.instance_uuid, 'p1', {
                'not_enough_available': 2, 'host_unknown': 1}, 1),
            (found.instance_uuid, found.project_id, found.reasons,
             found.passed))
        self.assertEqual(
            'h4: the host never reported its devices', found.detail)

    def test_decision_that_refuses_no_host_is_no_record(self):
        cache = scheduler_view.SchedulerViewCache(self.view(groups('h1')))
        list(gpu_filter.GpuFilter(cache).filter_all(
            [host('h1')], self.spec(resources__CUSTOM_GPU_A='1')))
        self.assertEqual((), cache.refused.oldest())

    def test_requests_are_counted_once_for_each_instance(self):
        cache = scheduler_view.SchedulerViewCache(FakeAPI(
            *[make.changes(groups('h1'))] * 4))
        subject = gpu_filter.GpuFilter(cache)
        # The same instance again, as for an alternate, and two that no host
        # has enough GPUs for, of which the second exceeds the quota.
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.domain.event.QUOTA_LIMIT', 1))
        for spec, number in (
                (self.spec(resources__CUSTOM_GPU_A='8'), 5),
                (self.spec(resources__CUSTOM_GPU_A='2'), 1),
                (self.spec(resources__CUSTOM_GPU_A='2'), 1),
                (self.spec(resources__CUSTOM_GPU_A='8'), 2),
                (self.spec(), 3), (self.spec(rebuild=True), 4)):
            spec.instance_uuid = spec.instance_uuid.replace('1', str(number))
            list(subject.filter_all([host('h1')], spec))
        self.assertEqual({
            (1, 64, 'CUSTOM_GPU_A', 2): 1, (1, 64, 'CUSTOM_GPU_A', 8): 1,
            (1, 64, '', 0): 1}, {
            kind: len(instances) for kind, instances
            in cache.requests.arrived()})

    def test_refusal_without_a_conductor_is_recorded_later(self):
        cache = scheduler_view.SchedulerViewCache(FakeAPI(
            exception.ConductorUnavailable(method='x', timeout=1)))
        list(gpu_filter.GpuFilter(cache).filter_all(
            [host('h1')], self.spec(resources__PGPU='1')))
        [found] = cache.refused.oldest()
        self.assertEqual({'conductor_unavailable': 1}, found.reasons)

    def exact(self, answer, hint=('gpu1 0000:3b:00.0',), **specs):
        """Return the hosts that pass, and what waits to be recorded."""
        api = self.view()
        api.exact = answer
        spec = self.spec(**specs)
        spec.scheduler_hints = {'gpgpu_device': list(hint)}
        cache = scheduler_view.SchedulerViewCache(api)
        passed = [passed.host for passed in gpu_filter.GpuFilter(
            cache).filter_all([host('h1'), host('h2')], spec)]
        return passed, cache.refused.oldest(), api.named

    def test_host_of_named_devices_passes(self):
        passed, sent, [named] = self.exact(
            scheduling.ExactHost(host='gpu1', node_uuid='h2'),
            resources__CUSTOM_FPGA='1', gpgpu__topology='same_numa')
        self.assertEqual((['h2'], ()), (passed, sent))
        self.assertEqual(
            ('p1', ('gpu1 0000:3b:00.0',), '1 of CUSTOM_FPGA', 'same_numa'),
            (named.project_id, named.devices,
             request.describe(named.request), named.request.topology))

    def test_refused_names_are_recorded(self):
        for answer, hint, reason in (
                (scheduling.ExactHost(refusal=request.Refusal(
                    reason=request.Reason.EXACT_DEVICE_UNKNOWN,
                    detail='x')), ('h 3b:00.0',), 'exact_device_unknown'),
                (scheduling.ExactHost(host='gpu3', node_uuid='h3'),
                 ('h 3b:00.0',), 'exact_device_elsewhere'),
                (None, ('x',), 'exact_devices_invalid'),
                (None, (), 'exact_devices_invalid'),
                (exception.ConductorUnavailable(method='x', timeout=1),
                 ('h 3b:00.0',), 'conductor_unavailable')):
            with self.subTest(reason):
                passed, [sent], _ = self.exact(answer, hint)
                self.assertEqual(([], {reason: 2}), (passed, sent.reasons))

    def test_rebuild_does_not_ask_for_named_devices(self):
        api, spec = self.view(), self.spec(rebuild=True)
        spec.scheduler_hints = {
            **spec.scheduler_hints, 'gpgpu_device': ['x']}
        self.assertEqual(['h1'], self.passed(api, spec, host('h1')))
        self.assertEqual([], api.named)

    def test_gpu_may_be_available_for_several(self):
        self.assertEqual(['h1'], self.passed(
            self.view(groups('h1', free=0b1001, available=(2, 0, 0, 1)),
                      groups('h2', free=0b1001, available=(1, 0, 0, 1))),
            self.spec(resources__CUSTOM_GPU_A='3'), host('h1'), host('h2')))
        # GPUs 0 and 1 are on one node.
        self.assertEqual(['h2'], self.passed(
            self.view(groups('h1', free=0b1001, available=(2, 0, 0, 1)),
                      groups('h2', free=0b0011, available=(2, 1, 0, 0))),
            self.spec(resources__CUSTOM_GPU_A='3',
                      gpgpu__topology='same_numa'), host('h1'), host('h2')))

    def test_several_on_a_gpu_below_no_switch(self):
        self.assertEqual(['h1'], self.passed(
            self.view(groups('h1', free=0b0100, available=(0, 0, 3, 0),
                             alone=(0b0100, 0b1000)),
                      groups('h2', free=0b1100, available=(0, 0, 2, 1),
                             alone=(0b0100, 0b1000))),
            self.spec(resources__CUSTOM_GPU_A='3',
                      gpgpu__topology='same_switch'),
            host('h1'), host('h2')))

    def test_topology(self):
        spec = self.spec(resources__CUSTOM_GPU_A='2',
                         gpgpu__topology='same_numa')
        self.assertEqual(['h2'], self.passed(
            self.view(groups('h1', free=0b0101), groups('h2', free=0b0011)),
            spec, host('h1'), host('h2')))
        self.assertIn('topology_same_numa', self.log.output)

    def test_all_refused_is_said_with_counts(self):
        self.assertEqual([], self.passed(
            self.view(groups('h1', free=0)),
            self.spec(resources__CUSTOM_GPU_A='1'), host('h1'), host('h9')))
        self.assertIn('host_unknown 1, not_enough_available 1',
                      self.log.output)

    def test_without_gpu_no_call_but_the_first(self):
        api = self.view(groups('h2'))
        subject = gpu_filter.GpuFilter(scheduler_view.SchedulerViewCache(api))
        for spec in (self.spec(), self.spec(hw__cpu_policy='dedicated')):
            self.assertEqual(['h1'], [passed.host for passed in (
                subject.filter_all([host('h1')], spec))])
            self.assertEqual({'h2'},
                             set(request_view.decision_of(spec).view.hosts))
        self.assertEqual([(0, None)], api.asked)

    def test_image_that_requires_a_gpu_is_refused_without_one(self):
        image = objects.ImageMeta.from_dict({'properties': {
            'trait:CUSTOM_GPGPU_HOST': 'required'}})
        for specs, passed in (
                ({}, []), ({'resources__CUSTOM_FPGA': '1'}, []),
                ({'resources__CUSTOM_GPU_A': '1'}, ['h1'])):
            spec = self.spec(**specs)
            spec.image = image
            self.assertEqual(passed, self.passed(
                self.view(groups('h1')), spec, host('h1')), specs)
        self.assertIn('gpu_required', self.log.output)

    def test_class_of_somebody_else_passes(self):
        self.assertEqual(['h1'], self.passed(
            self.view(groups('h1')), self.spec(resources__CUSTOM_FPGA='1'),
            host('h1')))

    def test_rebuild_and_forced_hosts_pass(self):
        api = FakeAPI()
        self.assertEqual(['h1'], self.passed(
            api, self.spec(rebuild=True, resources__CUSTOM_GPU_A='9'),
            host('h1', [])))
        self.assertEqual([], api.asked)
        self.assertEqual(['h1'], self.passed(
            self.view(groups('h1', free=0)),
            self.spec(resources__CUSTOM_GPU_A='1'), host('h1', [])))

    def test_no_conductor(self):
        def api():
            return FakeAPI(exception.ConductorUnavailable(
                method='changes_since', timeout=1))
        self.assertEqual([], self.passed(
            api(), self.spec(resources__CUSTOM_GPU_A='1'), host('h1')))
        self.assertIn('conductor_unavailable', self.log.output)
        self.assertEqual(['h1'], self.passed(
            api(), self.spec(resources__CUSTOM_FPGA='1'), host('h1')))

    def test_wrong_extra_spec_is_refused(self):
        self.assertEqual([], self.passed(
            FakeAPI(), self.spec(gpgpu__topology='same_rack'), host('h1')))
        self.assertIn('extra_spec_invalid', self.log.output)

    def test_only_fitting_candidates_stay(self):
        good = {'allocations': {'h1-rp': {}}}
        candidate_host = host('h1', [{'allocations': {'other-rp': {}}}, good])
        self.assertEqual(['h1'], self.passed(
            self.view(groups('h1')), self.spec(
                resources__CUSTOM_GPU_A='1'), candidate_host))
        self.assertEqual([good], candidate_host.allocation_candidates)

    def test_enumerated_for_nova(self):
        self.assertIn(gpu_filter.GpuFilter, scheduler_filters.all_filters())
