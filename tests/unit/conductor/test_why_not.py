# SPDX-License-Identifier: Apache-2.0
"""Tests that why-not and the claim agree, and that its advice helps."""

import dataclasses

import hypothesis
from hypothesis import strategies as st
from oslotest import base as oslotest_base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import why_not
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request as request_mod
from tests.fixtures import cleaned
from tests.fixtures import examples
from tests.fixtures import released
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

SAME_NUMA = request_mod.GPUTopology.SAME_NUMA


class PageTest(base.ConductorTestCase):

    def answers(self, count=1, host=None, limit=10, marker=None, **fields):
        return why_not.page(
            self.db, self.request(count, **fields).request, None, host,
            limit, marker)

    def test_host_that_fits_has_neither_reason_nor_advice(self):
        [answer] = self.answers(8)
        self.assertEqual(('h1', base.NODE, (), ()), (
            answer.host, answer.node_uuid, answer.findings, answer.advice))

    def test_advice_names_the_address_of_the_device(self):
        self.boot(7)
        [device] = [row for row in device_admin.list_all(self.db, 'h1')
                    if row.shown_state == 'available']
        device_admin.set_(self.db, device.uuid, 'op', enabled=False)
        [answer] = self.answers(1)
        self.assertEqual(('enable', (device.address,), ()), (
            answer.advice[0].kind, answer.advice[0].subjects,
            answer.advice[0].left))

    def test_instance_is_named_that_has_to_move(self):
        self.boot(6, 'i1')
        [answer] = self.answers(3)
        self.assertEqual(
            '3 of CUSTOM_GPU_H100 requested, 2 available; 8 GPUs of H100: '
            '6 assigned, 2 available', answer.findings[0].detail)
        self.assertEqual(
            [('move', ('i1',)), ('fewer', ('2',))],
            [(one.kind, one.subjects) for one in answer.advice])

    def test_hosts_come_page_by_page(self):
        self.report_second_host()
        self.assertEqual(['h1'], [
            answer.host for answer in self.answers(limit=1)])
        self.assertEqual(['h2'], [
            answer.host for answer in self.answers(limit=1, marker='h1')])
        self.assertEqual(['h2'], [
            answer.host for answer in self.answers(host='h2')])
        self.assertRaises(exception.NotFound, self.answers, host='h3')
        self.assertRaises(exception.Invalid, self.answers, limit=0)

    def test_request_for_no_gpu_is_refused(self):
        refused = self.assertRaises(
            exception.Invalid, why_not.page, self.db, request_mod.Request(
                demands=(request_mod.Demand(
                    resource_class='CUSTOM_FPGA', count=1),)),
            None, None, 10, None)
        self.assertIn('1 of CUSTOM_FPGA', str(refused))
        self.assertIn('CUSTOM_GPU_H100', str(refused))

    def test_silent_host_is_a_reason(self):
        [answer] = why_not.page(
            self.db, self.request(1).request, None, None, 10, None,
            silent_after=-3600)
        self.assertEqual(['host_silent'], [
            found.reason for found in answer.findings])

    def test_nothing_is_written(self):
        with self.statements() as found:
            self.answers(8)
        self.assertEqual([], [
            statement for statement in found
            if not statement.lstrip().startswith(('SELECT', 'BEGIN'))])


class _World:
    """A conductor whose state hypothesis chooses, and the verbs.

    :param boot: claims and activates, by the instance and a number
    """

    def __init__(self, case, boot):
        self.case = case
        self.db = case.db
        self.boot = boot
        self.granted = {}

    def make(self, verb, number):
        """Bring the host into some state, as far as it goes there."""
        devices = [row for row in device_admin.list_all(self.db, 'h1')
                   if row.kind == 'pci']
        uuid = devices[number % len(devices)].uuid
        try:
            if verb == 'boot':
                instance = f'i{len(self.granted)}'
                self.granted[instance] = self.boot(instance, number)
            elif verb == 'disable':
                device_admin.set_(self.db, uuid, 'op', enabled=False)
            elif verb == 'clean':
                released.clean(self.db, uuid, 'me')
            elif verb == 'quarantine':
                withdrawal.quarantine(self.db, uuid, 'looked at', 'me')
            elif verb == 'drain':
                host_admin.drain(self.db, 'h1', 'op', draining=True)
            elif self.granted:
                self.end(min(self.granted))
        except (exception.ClaimDenied, exception.Conflict):
            pass  # Then the host stays as it is.

    def end(self, instance):
        granted = self.granted.pop(instance)
        releases.release(self.db, base.uuids(granted))
        return granted

    def change(self, advice):
        """Do what an advice says, by the verb that it names."""
        # The vGPUs of a GPU have its address.
        rows = [row for row in device_admin.list_all(self.db, 'h1')
                if row.address in advice.subjects]
        gpus = [row.uuid for row in rows if row.kind == 'pci']
        if advice.kind == 'undrain':
            host_admin.drain(self.db, 'h1', 'op', draining=False)
        elif advice.kind == 'enable':
            for uuid in gpus:
                device_admin.set_(self.db, uuid, 'op', enabled=True)
        elif advice.kind == 'move':
            self.clean({assignment.device_uuid for instance in advice.subjects
                        for assignment in self.end(instance).assignments})
        else:
            assert advice.kind in ('wait', 'repair'), advice
            for uuid in gpus if advice.kind == 'repair' else ():
                released.release(self.db, uuid, 'me')
            self.clean({row.uuid for row in rows})

    def clean(self, devices):
        for task in cleaning.tasks(self.db, 'h1'):
            if task.device_uuid in devices:
                cleaning.started(self.db, task.device_uuid, task.token,
                                 task.token)
                cleaning.finished(
                    self.db, task.device_uuid, task.token, task.steps,
                    cleaned.results(task.steps))


def check(case, world, request, claim):
    """Check that a claim gets what is said, and after an advice, too.

    :param claim: returns the reason of a denial; None: it was granted, and
        is no more
    """
    [answer] = why_not.page(case.db, request, None, None, 1, None)
    denied = claim(request)
    reasons = [found.reason for found in answer.findings]
    assert bool(reasons) == (denied is not None), (reasons, denied)
    assert denied is None or denied in reasons, (reasons, denied)

    def check_left(advice, request):
        denied = claim(request)
        assert denied in (advice.left or (None,)), (advice, denied)
    of_request = {
        'topology': lambda topology: {'topology': topology},
        'fewer': lambda count: {'demands': (dataclasses.replace(
            request.demands[0], count=int(count)),)}}
    for advice in answer.advice:
        if advice.kind in of_request:
            check_left(advice, dataclasses.replace(
                request, **of_request[advice.kind](*advice.subjects)))
    of_host = [advice for advice in answer.advice
               if advice.kind not in of_request]
    if of_host:
        # One of them, as each changes the host.
        advice = of_host[len(world.granted) % len(of_host)]
        world.change(advice)
        check_left(advice, request)


def claimed(case, request):
    """Return the reason of a denial; None: it was granted, and is no more."""
    asked = dataclasses.replace(
        case.request(1, 'asker', allocated=0), request=request)
    try:
        granted = claims.claim(case.db, asked, lease=60)
    except exception.ClaimDenied as exc:
        return exc.reason
    releases.abort(case.db, base.uuids(granted), touched=False, fault=None)
    return None


VERBS = st.lists(st.tuples(
    st.sampled_from(['boot', 'boot', 'boot', 'end', 'disable', 'clean',
                     'quarantine', 'drain']),
    st.integers(0, 7)), min_size=2, max_size=9)
SETTINGS = hypothesis.settings(
    max_examples=examples.count(30), deadline=None, derandomize=True)


class AgreementTest(oslotest_base.BaseTestCase):

    @SETTINGS
    @hypothesis.given(verbs=VERBS, count=st.integers(1, 8),
                      topology=st.sampled_from(request_mod.GPUTopology))
    def test_of_whole_gpus(self, verbs, count, topology):
        case = base.MachineCase('run')
        case.setUp()
        try:
            world = _World(case, lambda instance, number: case.boot(
                1 + number % 3, instance))
            for verb, number in verbs:
                world.make(verb, number)
            check(case, world, case.request(
                count, topology=topology).request,
                lambda request: claimed(case, request))
        finally:
            case.doCleanups()

    @SETTINGS
    @hypothesis.given(verbs=VERBS, count=st.integers(1, 8),
                      size=st.sampled_from(['1Q', '4Q', '16Q', None]))
    def test_of_vgpus(self, verbs, count, size):
        case = vgpu_base.MachineCase('run')
        case.setUp()

        def boot(instance, number):
            granted = case.ask(instance, **{
                ('Q1', 'Q4', 'Q16', 'whole')[number % 4]: 1 + number // 4})
            claims.activate(case.db, base.uuids(granted))
            return granted
        try:
            world = _World(case, boot)
            for verb, number in verbs:
                world.make(verb, number)
            name = naming.resource_class(
                'T4', f'T4-{size}' if size else naming.PASSTHROUGH)
            check(case, world, request_mod.Request(demands=(
                request_mod.Demand(resource_class=name, count=count),)),
                lambda request: claimed(case, request))
        finally:
            case.doCleanups()
