# SPDX-License-Identifier: Apache-2.0
"""Hosts that start without the VFs that instances have."""

import os
import uuid
from unittest import mock

import fixtures
from oslotest import base as test_base

from gpgpu_plugin import exception
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host.fake import host as fake_host
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import virt_driver
from tests.unit.compute import base
from tests.unit.compute import make


class PowerCutTest(test_base.BaseTestCase):
    """The host starts before a conductor does; the GPUs have lost their VFs.

    :ivar devices: a VF of each of two GPUs
    """

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        path = self.useFixture(fixtures.TempDir()).path
        self.conf.set_override('state_path', path, 'gpgpu_compute')
        self.host = fake_host.FakeHost.for_machine(
            'nvidia-l40s-vgpu-2', os.path.join(path, 'sys'),
            {'10de:26b9': 32})
        self.host.make_vfs(())
        self.devices = {
            function.pf: function for function in self.host.scan().functions
            if function.pf is not None}.values()
        self.tracker = self.start()

    def start(self):
        api = mock.Mock()
        api.begin_session.side_effect = exception.ConductorUnavailable(
            method='x', timeout=1)
        tracker = resource_tracker.ResourceTracker(
            self.conf, 'h1', self.host, api, virt_driver.make(),
            lambda assignments: frozenset())
        tracker.set_node('h1', 'n1')
        tracker.run_once()
        return tracker

    def assign(self, vf, **changes):
        assignment = make.assignment(
            uuid=str(uuid.uuid4()), stable_id=vf.id, address=vf.address,
            vgpu_type='L40S-12Q', **changes)
        self.tracker.assignments.add('i1', [assignment])
        self.tracker.restore()
        return host_base.HostDevice.of(assignment)

    def cut(self):
        for function in self.host.scan().functions:
            if function.sriov_numvfs:
                self.host.kernel.set_vfs(function.address, 0)

    def with_vfs(self):
        return {function.id for function in self.host.scan().functions
                if function.sriov_numvfs}

    def test_assigned_vf_is_ready_and_other_gpus_have_no_vfs(self):
        vf, _ = self.devices
        device = self.assign(vf)
        self.cut()
        self.start().restore()
        self.assertEqual(
            (vf.address,), self.host.attachment(device).functions)
        self.assertEqual({pci.pf_of(vf.id)}, self.with_vfs())

    def test_gpu_that_the_book_has_as_unclean_gets_no_vfs(self):
        vf, _ = self.devices
        self.assign(vf)
        self.tracker.assignments.cleaning(pci.pf_of(vf.id))
        self.cut()
        self.start().restore()
        self.assertEqual(set(), self.with_vfs())

    def test_conductor_that_answers_decides_alone(self):
        vf, _ = self.devices
        self.assign(vf)
        self.cut()
        self.tracker.session = mock.Mock(is_reported=True, is_restored=False)
        self.tracker.restore()
        self.assertEqual(set(), self.with_vfs())

    def test_start_of_one_guest_makes_no_vfs(self):
        vf, _ = self.devices
        self.assign(vf)
        self.cut()
        tracker_api.restore(
            self.tracker, self.tracker.assignments.all())
        self.assertEqual(set(), self.with_vfs())

    def test_host_that_cannot_be_scanned_starts(self):
        vf, _ = self.devices
        self.assign(vf)
        self.useFixture(fixtures.MockPatchObject(
            self.host, 'make_vfs', side_effect=exception.HostError(
                path='/sys', reason='x')))
        self.tracker.restore()


class RestoredPowerCutTest(base.ComputeTestCase):
    """The host starts after the database was restored from a backup."""

    machine = 'nvidia-l40s-vgpu-2'

    def make_tracker(self):
        self.backend = fake_host.FakeHost.for_machine(
            self.machine, os.path.join(self.state_path, 'sys'),
            {'10de:26b9': 32})
        tracker = resource_tracker.ResourceTracker(
            self.conf, 'h1', self.backend, self.api,
            virt_driver.make(self.client),
            lambda assignments: frozenset())
        tracker.set_node('h1', base.NODE)
        return tracker

    def test_assigned_vf_is_ready(self):
        vf = next(function for function in self.backend.scan().functions
                  if function.pf is not None)
        assignment = make.assignment(
            uuid=str(uuid.uuid4()), stable_id=vf.id, address=vf.address,
            vgpu_type='L40S-12Q')
        self.tracker.assignments.add('i1', [assignment])
        self.tracker.restore()
        for function in self.backend.scan().functions:
            if function.sriov_numvfs:
                self.backend.kernel.set_vfs(function.address, 0)
        sessions.mark_restored(self.conductor.db)
        tracker = self.make_tracker()
        tracker.run_once()
        tracker.restore()
        self.assertEqual((vf.address,), self.backend.attachment(
            host_base.HostDevice.of(assignment)).functions)
