# SPDX-License-Identifier: Apache-2.0
"""Property tests of driver reports, claims and deletions in any order."""

import dataclasses
import functools
import itertools

import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import initialize
from hypothesis.stateful import invariant
from hypothesis.stateful import precondition
from hypothesis.stateful import rule
from oslotest import base as oslotest_base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import vgpu
from tests.fixtures import cleaned
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

GPUS = vgpu_base.GPUS
TYPES = vgpu_base.TYPES


class Driver:
    """Driver of one GPU of 16 GB that reports less capacity."""

    def __init__(self, memory):
        self.memory = memory
        self.made = {}

    def available(self, name):
        return (self.memory - sum(map(size_of, self.made.values()))) // (
            size_of(name))

    def make(self, uuid_, name):
        """Create a vGPU; return whether there was enough memory."""
        if not self.available(name):
            return False
        self.made[uuid_] = name
        return True

    def report(self):
        return vgpu.DriverCapacity(
            existing=tuple(sorted(self.made)),
            available={kind.name: self.available(kind.name) for kind in TYPES})


def size_of(name):
    return int(name[3:-1])


class DriverMachine(RuleBasedStateMachine):
    """State machine: reports of drivers arrive late and in any order.

    What is claimed once all have arrived the drivers make.
    """

    def __init__(self):
        super().__init__()
        self.case = vgpu_base.MachineCase('run')
        self.case.mix_policy = 'any_mix'
        self.case.setUp()
        self.live = {}
        self.count = 0
        self.cleaned = set()
        # Calls that are on their way to the conductor.
        self.calls = []

    def teardown(self):
        self.case.doCleanups()

    @initialize(memories=st.tuples(*[st.sampled_from([3, 6, 16])] * 2))
    def start(self, memories):
        self.numbers = itertools.count(1)
        self.drivers = {gpu.id: Driver(memory) for gpu, memory in zip(
            GPUS, memories, strict=True)}
        self.scan(False)

    def sampled(self, *gpus):
        at = ('start', next(self.numbers))
        return {
            gpu: dataclasses.replace(
                self.drivers[gpu].report(), sampled_at=at)
            for gpu in gpus
        }

    def reports_of(self, claim):
        return self.sampled(*{assignment.stable_id.partition('/mdev')[0]
                              for assignment in claim.assignments})

    def call(self, late, method, *args, **kwargs):
        self.calls.append(functools.partial(
            method, self.case.db, *args, **kwargs))
        if not late:
            self.calls.pop()()

    def ask(self, name, count):
        promised = self.case.remaining()[f'{name[1:]}Q']
        self.count += 1
        try:
            claim = self.case.ask(f'i{self.count}', **{name: count})
        except exception.ClaimDenied:
            assert promised < count, (promised, count)
            return None
        assert promised >= count, (promised, count)
        return claim

    def make(self, claim):
        """Create a claim's vGPUs or none; return whether it worked."""
        made = []
        for assignment in claim.assignments:
            driver = self.drivers[assignment.stable_id.partition('/mdev')[0]]
            if not driver.make(assignment.uuid, assignment.vgpu_type):
                for driver, uuid_ in made:
                    del driver.made[uuid_]
                return False
            made.append((driver, assignment.uuid))
        return True

    names = st.sampled_from(['Q1', 'Q4', 'Q16'])

    @rule(name=names, count=st.integers(1, 5), late=st.booleans())
    def boot(self, name, count, late):
        known = not self.calls
        claim = self.ask(name, count)
        if claim is None:
            return
        made = self.make(claim)
        assert made or not known, claim
        uuids, reported = base.uuids(claim), self.reports_of(claim)
        if not made:
            self.call(late, releases.abort, uuids, touched=False, fault=None,
                      driver_capacities=reported)
            return
        key = f'i{self.count}'

        def activate(*args):
            claims.activate(*args)
            self.live[key] = uuids
        self.call(late, activate, uuids, reported)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), how=st.sampled_from(['late', 'now', 'swapped']))
    def delete(self, data, how):
        key = data.draw(st.sampled_from(sorted(self.live)))
        releases.release(self.case.db, self.live.pop(key))
        before = len(self.calls)
        for task in cleaning.tasks(self.case.db, 'h1'):
            if task.token in self.cleaned:
                continue
            self.cleaned.add(task.token)
            gpu = task.stable_id.partition('/mdev')[0]
            cleaning.started(
                self.case.db, task.device_uuid, task.token, task.token)
            self.drivers[gpu].made.pop(task.assignment_uuid)
            self.call(how != 'now', cleaning.finished, task.device_uuid,
                      task.token, task.steps,
                      cleaned.results(task.steps),
                      driver_capacities=self.sampled(gpu))
        if how == 'swapped':
            while self.calls[before:]:
                self.calls.pop()()

    @precondition(lambda self: self.calls)
    @rule(late=st.booleans())
    def scan(self, late):
        reported = self.sampled(*self.drivers)
        self.call(late, reports.report, base.scan(
            dataclasses.replace(
                gpu, driver_capacity=reported[gpu.id],
                existing_vgpus=tuple(sorted(self.drivers[gpu.id].made)))
            for gpu in GPUS))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def arrive(self, data):
        for call in data.draw(st.permutations(self.calls)):
            call()
        self.calls.clear()

    @invariant()
    def capacity_is_no_more_than_the_drivers_make(self):
        if self.calls:
            return
        for name, left in self.case.remaining().items():
            if name != 'passthrough':
                assert left <= sum(
                    driver.available(f'T4-{name}')
                    for driver in self.drivers.values()), name

    @invariant()
    def observed_maxima_are_true(self):
        with self.case.db.reader() as session:
            for gpu in session.execute(sa.select(tables.DEVICES).where(
                    tables.DEVICES.c.kind == 'pci')):
                memory = self.drivers[gpu.stable_id].memory
                reported = device_db.driver_capacity(gpu)
                for name, most in reported.observed_max.items():
                    assert most == memory // size_of(name), (name, reported)


class AnyOrderTest(oslotest_base.BaseTestCase):

    def test_reports_and_claims(self):
        vgpu_base.run_machine(DriverMachine, examples=20, steps=20)
