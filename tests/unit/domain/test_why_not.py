# SPDX-License-Identifier: Apache-2.0
"""Tests of all reasons of a host to refuse a request, and of what helps.

conductor/test_why_not.py compares them with claims.
"""

import dataclasses
import itertools

import hypothesis
from hypothesis import strategies as st
from oslotest import base as oslotest_base

from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import why_not
from gpgpu_plugin.domain.allocation import request as request_mod
from tests.fixtures import group as make
from tests.fixtures import host_values as base

_S = base.State
FREE, USED = _S.AVAILABLE, _S.ASSIGNED
HELD = base.HELD
SAME_NUMA = request_mod.GPUTopology.SAME_NUMA
Q4 = naming.resource_class('T4', 'T4-4Q')
DISABLED = {'holds': frozenset({'disabled'})}


def reasons(host, request, **fields):
    return [found.reason
            for found in why_not.findings(host, request, **fields)]


class FindingsTest(oslotest_base.BaseTestCase):

    def test_host_with_enough_gpus_has_no_reason(self):
        self.assertEqual([], reasons(base.t4s(FREE, FREE), base.request(2)))

    def test_shortage_names_numbers_by_state(self):
        [found] = why_not.findings(
            base.t4s(FREE, USED, USED, _S.CLEANING, base.HELD),
            base.request(2))
        self.assertEqual('not_enough_available', found.reason)
        self.assertEqual(
            '2 of CUSTOM_GPU_T4 requested, 1 available; 5 GPUs of T4: '
            '2 assigned, 1 available, 1 cleaning, 1 quarantined',
            found.detail)

    def test_all_reasons_are_named(self):
        host = base.t4s(FREE, USED, state=host_rules.HostState.SILENT,
                        draining=True, is_deleting=True)
        [group] = host.groups
        host = dataclasses.replace(host, groups=(dataclasses.replace(
            group, types=tuple(
                dataclasses.replace(offered, enabled=False)
                for offered in group.types)),))
        self.assertEqual(
            ['host_silent', 'host_draining', 'variant_deleting',
             'type_disabled', 'not_enough_available'],
            reasons(host, base.request(2)))

    def test_gpus_of_a_drained_host_are_counted(self):
        self.assertEqual(['host_draining'], reasons(
            base.t4s(FREE, FREE, draining=True), base.request(2)))

    def test_disabled_host_is_named_as_nova_does(self):
        self.assertEqual(['host_disabled'], reasons(
            base.t4s(FREE, state=host_rules.HostState.DISABLED),
            base.request(1)))

    def test_host_that_must_report_after_a_restore_is_named(self):
        self.assertEqual(['host_restored'], reasons(
            base.t4s(FREE, state=host_rules.HostState.RESTORED),
            base.request(1)))

    def test_topology_is_examined_if_there_are_enough(self):
        host = base.t4s(FREE, USED, FREE, USED, draining=True)
        self.assertEqual(
            ['host_draining', 'topology_same_numa'],
            reasons(host, base.request(2, topology=SAME_NUMA)))
        self.assertEqual(
            ['host_draining', 'not_enough_available'],
            reasons(host, base.request(3, topology=SAME_NUMA)))

    def test_numa_policy_is_examined_for_the_number_of_guest_nodes(self):
        host = base.t4s(FREE, USED, FREE, USED)
        near = base.request(
            2, numa_policy=request_mod.NUMAPolicy.REQUIRED)
        self.assertEqual(['numa_policy_required'], reasons(host, near))
        self.assertEqual(['numa_policy_required'],
                         reasons(host, near, guest_nodes=1))
        self.assertEqual([], reasons(host, near, guest_nodes=2))

    def test_class_that_the_host_does_not_have(self):
        [found] = why_not.findings(
            base.t4s(FREE), base.request(1, 'CUSTOM_GPU_H100'))
        self.assertEqual('no_such_group', found.reason)
        self.assertIn('which has CUSTOM_GPU_T4, CUSTOM_VGPU_T4_T4_16Q',
                      found.detail)
        [found] = why_not.findings(why_not.ExaminedHost(name='h2'),
                                   base.request(1))
        self.assertIn('which has no group', found.detail)


def lines(host, request):
    """Return kinds, subjects and what is left, as one text each."""
    return [' '.join((one.kind, *one.subjects, *(
        f'({reason})' for reason in one.left)))
        for one in why_not.advice(host, request)]


class AdviceTest(oslotest_base.BaseTestCase):

    def test_each_kind_is_tried_by_itself(self):
        host = base.t4s(_S.CLEANING, HELD, USED, FREE, FREE,
                               fields={4: DISABLED})
        self.assertEqual(
            ['wait 0000:00:00.0', 'enable 0000:04:00.0',
             'repair 0000:01:00.0', 'move i2', 'fewer 1'],
            lines(host, base.request(2)))

    def test_host_that_fits_needs_none(self):
        self.assertEqual([], lines(
            base.t4s(FREE, USED), base.request(1)))

    def test_several_are_named_if_one_is_not_enough(self):
        self.assertEqual(
            ['wait 0000:00:00.0 0000:01:00.0', 'fewer 1'],
            lines(base.t4s(_S.CLEANING, _S.DIRTY, _S.DIRTY, FREE),
                  base.request(3)))

    def test_no_kind_is_named_that_is_not_enough_for_its_reason(self):
        self.assertEqual(['fewer 1'], lines(
            base.t4s(_S.CLEANING, HELD, USED, FREE),
            base.request(3)))

    def test_other_reasons_are_left(self):
        host = base.t4s(_S.CLEANING, USED, FREE, draining=True)
        self.assertEqual(
            ['undrain h1 (not_enough_available)',
             'wait 0000:00:00.0 (host_draining)', 'move i1 (host_draining)',
             'fewer 1 (host_draining)'],
            lines(host, base.request(2)))

    def test_disabled_type_is_named_as_its_command_takes_it(self):
        host = base.t4s(FREE)
        [group] = host.groups
        host = dataclasses.replace(host, groups=(dataclasses.replace(
            group, types=tuple(
                dataclasses.replace(offered, enabled=False)
                for offered in group.types)),))
        [found] = why_not.advice(host, base.request(1))
        self.assertEqual(
            ('enable_type', ('T4 passthrough',), ()),
            (found.kind, found.subjects, found.left))
        self.assertEqual(
            'enable T4 passthrough: gpgpu-manage vgpu-type enable h1 T4 '
            'passthrough', found.detail)

    def test_one_instance_moves_rather_than_several(self):
        host = base.t4s(USED, USED, USED, USED,
                               users={1: 'two', 2: 'two', 0: 'a', 3: 'b'})
        self.assertEqual(['move two'], lines(host, base.request(2)))
        self.assertEqual(['move a'], lines(host, base.request(1)))
        self.assertEqual(['move a b two'],
                         lines(host, base.request(4)))

    def test_instances_that_move_leave_gpus_that_meet_the_topology(self):
        host = base.t4s(USED, FREE, USED, USED,
                               users={0: 'one', 2: 'two', 3: 'two'})
        self.assertEqual(
            ['move one', 'fewer 1'],
            lines(host, base.request(2, topology=SAME_NUMA)))

    def test_no_more_instances_move_than_needed(self):
        # Of the two GPUs, each with two vGPUs, one has to be left.
        gpus = [make.gpu(number, mechanism='mdev') for number in range(2)]
        rows = {name: make.mdev_row(gpus[number // 2], number % 2, state=USED,
                                    vgpu_type='T4-4Q')
                for name, number in zip('acbd', range(4), strict=True)}
        host = why_not.ExaminedHost(
            name='h1', groups=(make.t4s(*gpus, *rows.values()),),
            users={row.id: name for name, row in rows.items()})
        self.assertEqual(['move a c'], lines(host, base.request(1)))

    def test_topology_may_be_what_is_too_much(self):
        host = base.t4s(FREE, USED, FREE, USED)
        self.assertIn('topology any', lines(
            host, base.request(2, topology=SAME_NUMA)))

    def test_reason_that_only_gives_way_to_another_is_not_removed(self):
        # Two GPUs are clean then, but on two NUMA nodes.
        gone = {'present': False}
        host = base.t4s(_S.DIRTY, FREE, FREE, FREE,
                               fields={1: gone, 3: gone})
        self.assertEqual(['fewer 1'], lines(
            host, base.request(2, topology=SAME_NUMA)))

    def test_nothing_helps_a_host_that_is_too_small(self):
        self.assertEqual(['fewer 2'], lines(
            base.t4s(FREE, FREE), base.request(3)))
        self.assertEqual([], lines(
            base.t4s(FREE), base.request(1, 'CUSTOM_GPU_H100')))

    def test_missing_gpu_cannot_be_changed_from_here(self):
        self.assertEqual([], lines(
            base.t4s(_S.DIRTY, HELD, fields={
                number: {'present': False} for number in range(2)}),
            base.request(1)))

    def test_host_of_which_nothing_is_known_gets_none(self):
        for state in (host_rules.HostState.SILENT,
                      host_rules.HostState.RESTORED):
            self.assertEqual([], lines(
                base.t4s(_S.DIRTY, USED, state=state),
                base.request(1)))
        self.assertEqual(['wait 0000:00:00.0 (host_disabled)'], lines(
            base.t4s(_S.DIRTY, state=host_rules.HostState.DISABLED),
            base.request(1)))

    def test_gpu_that_was_withdrawn_is_quarantined_by_a_move(self):
        host = base.t4s(USED, fields={
            0: {'holds': frozenset({'quarantined'})}})
        self.assertEqual([], lines(host, base.request(1)))

    def test_gpu_is_named_for_the_vgpus_that_it_holds(self):
        for kind, holds, state in (
                ('enable', {'disabled'}, FREE),
                ('repair', {'quarantined'}, _S.DIRTY)):
            held = {'holds': frozenset(holds), 'state': state}
            gpu = make.gpu(mechanism='vf', **held)
            host = why_not.ExaminedHost(name='h1', groups=(make.t4s(gpu, *(
                make.vf(gpu, number, **held) for number in range(2))),))
            self.assertEqual([f'{kind} 0000:00:00.0'], lines(
                host, base.request(1, Q4)))

    def test_vf_is_named_if_its_gpu_is_not_held(self):
        gpu = make.gpu(mechanism='vf')
        host = why_not.ExaminedHost(name='h1', groups=(make.t4s(
            gpu, make.vf(gpu, 1, **DISABLED)),))
        self.assertEqual(['enable 0000:00:01.1'],
                         lines(host, base.request(1, Q4)))

    def test_mdevs_have_the_address_of_their_gpu(self):
        gpu = make.gpu(mechanism='mdev')
        host = why_not.ExaminedHost(name='h1', groups=(make.t4s(gpu, *(
            make.mdev_row(gpu, number, vgpu_type='T4-4Q', state=_S.CLEANING)
            for number in range(2))),))
        self.assertEqual(['wait 0000:00:00.0'],
                         lines(host, base.request(1)))

    def test_moved_vgpus_leave_a_whole_gpu(self):
        gpu = make.gpu(mechanism='mdev')
        rows = [make.mdev_row(gpu, number, vgpu_type='T4-4Q', state=USED)
                for number in range(2)]
        host = why_not.ExaminedHost(
            name='h1', groups=(make.t4s(gpu, *rows),),
            users={rows[0].id: 'a', rows[1].id: 'b'})
        self.assertEqual(['move a b'], lines(host, base.request(1)))
        self.assertEqual(['move a', 'fewer 2'],
                         lines(host, base.request(3, Q4)))

    def test_each_subject_has_a_sentence(self):
        host = base.t4s(HELD, HELD, USED, USED)
        details = {one.kind: one.detail for one in why_not.advice(
            host, base.request(2))}
        for kind, detail in (
                ('repair',
                 'repair 0000:00:00.0 (quarantined): gpgpu-manage device show '
                 'h1 0000:00:00.0 says why, and device release has it cleaned '
                 'again; repair 0000:01:00.0 (quarantined): gpgpu-manage '
                 'device show h1 0000:01:00.0 says why, and device release '
                 'has it cleaned again'),
                ('move', 'move instance i2 to another host, and wait for the '
                         'cleaning; move instance i3 to another host, and '
                         'wait for the cleaning')):
            self.assertEqual(detail, details[kind])

    def test_each_kind_says_what_to_do(self):
        for host, count, words in (
                (base.t4s(_S.DIRTY), 1,
                 'wait until the cleaning of 0000:00:00.0 has passed'),
                (base.t4s(FREE, draining=True), 1,
                 'undrain the host: gpgpu-manage host undrain h1'),
                (base.t4s(FREE, fields={0: DISABLED}), 1,
                 'enable 0000:00:00.0: gpgpu-manage hold remove h1 '
                 '0000:00:00.0 --kind disabled'),
                (base.t4s(FREE), 2,
                 'request 1 of CUSTOM_GPU_T4 instead of 2')):
            found = why_not.advice(host, base.request(count))
            self.assertEqual(words, found[0].detail)
        [*_, topology, _] = why_not.advice(
            base.t4s(FREE, USED, FREE), base.request(
                2, topology=SAME_NUMA))
        self.assertEqual(
            'request gpgpu:topology=any instead of same_numa',
            topology.detail)


STATES = st.sampled_from(
    [FREE, FREE, USED, USED, _S.DIRTY, _S.CLEANING, HELD])
CHANGES = {change.kind: change for changes in why_not.ADVICE.values()
           for change in changes}


class TableTest(oslotest_base.BaseTestCase):

    def test_reasons_are_those_of_a_host(self):
        self.assertLessEqual(set(why_not.ADVICE), set(request_mod.Reason))

    @hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
    @hypothesis.given(
        states=st.lists(STATES, min_size=1, max_size=6),
        owners=st.lists(st.sampled_from('abc'), min_size=6, max_size=6),
        count=st.integers(1, 4), topology=st.sampled_from(
            [request_mod.GPUTopology.ANY, SAME_NUMA]),
        disabled=st.sets(st.integers(0, 5)), draining=st.booleans())
    def test_advice_leaves_what_it_says_and_none_is_missing(
            self, states, owners, count, topology, disabled, draining):
        host = base.t4s(
            *states, users=dict(enumerate(owners)), draining=draining,
            fields=dict.fromkeys(disabled, DISABLED))
        request = base.request(count, topology=topology)
        before = reasons(host, request)
        found = {one.kind: one for one in why_not.advice(host, request)}
        for kind, change in CHANGES.items():
            subjects = change.subjects(host, request)

            def helps(some, change=change):
                return bool(some) and set(reasons(*change.after(
                    host, request, some))) < set(before)
            sizes = [len(some) for some in _subsets(subjects) if helps(some)]
            applies = any(change in why_not.ADVICE.get(reason, ())
                          for reason in before)
            self.assertEqual(applies and bool(sizes), kind in found, kind)
            if kind in found:
                needed = found[kind].subjects
                self.assertEqual(found[kind].left, tuple(reasons(
                    *change.after(host, request, needed))))
                self.assertEqual(min(sizes) == 1, len(needed) == 1)
                for subject in needed:
                    self.assertFalse(helps(
                        [one for one in needed if one != subject]), needed)


def _subsets(subjects):
    return itertools.chain.from_iterable(
        itertools.combinations(subjects, size)
        for size in range(len(subjects) + 1))
