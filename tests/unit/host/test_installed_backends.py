# SPDX-License-Identifier: Apache-2.0
"""Tests of the choice of a device's backend, and of a missing backend."""

import uuid

import fixtures
from oslotest import base
from stevedore import extension

from gpgpu_plugin import exception
from gpgpu_plugin import extensions
from gpgpu_plugin.domain import gpu as gpu_rules
from gpgpu_plugin.host import base as host_base
from gpgpu_plugin.host import local
from gpgpu_plugin.host.backends import whole_function
from gpgpu_plugin.host.fake import host as fake_host
from tests.fixtures import third_party
from tests.unit.compute import base as compute_base
from tests.unit.compute import make


class First(whole_function.PassthroughBackend):
    """Backend of a test, with the number of the next one."""

    order = 5


class Second(First):
    """Backend of a test."""


class WithoutOrder(host_base.Backend):
    """Backend of a test that lacks its number."""

    handles = prepare = release = clean = attachment = None


class Broken(First):
    """Backend of a test that cannot work on this host."""

    def __init__(self, access):
        super().__init__(access)
        raise OSError('no library libacme.so')


def targets(**classes):
    """Return entry points of backends that are classes of this module."""
    return {extensions.BACKENDS: {
        name: f'{__name__}:{found.__name__}'
        for name, found in classes.items()}}


class InstalledBackendsCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())

    def start(self):
        """Start a host with two GPUs that no guest has, and choose one."""
        self.host = fake_host.FakeHost.for_machine(
            'pcie-l40s-4', f'{self.useFixture(fixtures.TempDir()).path}/sys')
        self.gpus = [function for function
                     in self.host.discover(self.host.scan())
                     if function.device == '26b9']
        self.device = host_base.HostDevice(
            assignment_uuid=str(uuid.uuid4()), stable_id=self.gpus[0].id,
            address=self.gpus[0].address)

    def chosen(self):
        return type(local.InstalledBackends(
            self.host.access).of(self.device))


class OrderTest(InstalledBackendsCase):

    def setUp(self):
        super().setUp()
        self.start()

    def test_lowest_number_is_asked_first(self):
        self.assertIs(whole_function.PassthroughBackend, self.chosen())
        self.useFixture(third_party.Installed(targets(zzz=First)))
        self.assertEqual(First.__name__, self.chosen().__name__)

    def test_of_the_same_number_the_first_name_is_asked_first(self):
        for names in (('a', 'b'), ('b', 'a')):
            classes = dict(zip(names, (First, Second), strict=True))
            for listed in (classes, dict(reversed(classes.items()))):
                with third_party.Installed(targets(**listed)):
                    self.assertEqual(
                        classes['a'].__name__, self.chosen().__name__)


class ThirdPartyTest(InstalledBackendsCase):

    def test_backend_of_another_package_prepares_and_cleans_its_gpus(self):
        self.useFixture(third_party.Installed(third_party.acme()))
        self.start()
        self.host.prepare(self.device)
        self.assertIn(f'Acme prepared {self.device.address}', self.log.output)
        self.assertEqual(
            [self.device.address], [
                gpu.address for gpu in self.host.scan().functions
                if gpu.driver == 'vfio-pci' and gpu.device == '26b9'])
        self.host.release(self.device)
        self.assertTrue(self.host.clean(self.device).passed)

    def test_gpu_of_another_model_is_not_that_backend_s(self):
        self.useFixture(third_party.Installed(third_party.acme()))
        self.host = fake_host.FakeHost.for_machine(
            'hgx-h100-8', f'{self.useFixture(fixtures.TempDir()).path}/sys')
        gpu = next(function for function in self.host.scan().functions
                   if function.device == '2330')
        self.host.prepare(host_base.HostDevice(
            assignment_uuid='a1', stable_id=gpu.id, address=gpu.address))
        self.assertNotIn('Acme', self.log.output)


class MissingTest(InstalledBackendsCase):

    def assert_nothing_is_offered(self, *words):
        """Check that a host without a backend offers and changes nothing."""
        self.start()
        self.assertTrue(self.gpus)
        for gpu in self.gpus:
            reason = gpu_rules.unassignable_reason(gpu, None)
            for word in words:
                self.assertIn(word, reason)
                self.assertIn(word, self.log.output)
        for call in (self.host.prepare, self.host.release, self.host.clean,
                     self.host.give_back, self.host.attachment):
            exc = self.assertRaises(
                exception.HostNotReady, call, self.device)
            self.assertIn(words[0], str(exc))
        self.assertEqual([], self.host.kernel.written)

    def test_backend_that_cannot_be_imported(self):
        self.useFixture(third_party.Installed({
            extensions.BACKENDS: {'acme': 'acme_gpu.missing:Backend'}}))
        self.assert_nothing_is_offered(
            'backend acme', 'acme_gpu.missing:Backend', 'No module named')

    def test_backend_that_does_not_start(self):
        self.useFixture(third_party.Installed(targets(acme=Broken)))
        self.assert_nothing_is_offered('backend acme', 'libacme.so')

    def test_backend_without_a_number(self):
        self.useFixture(third_party.Installed(targets(acme=WithoutOrder)))
        self.assert_nothing_is_offered('backend acme', 'order')

    def test_object_that_is_no_backend(self):
        self.useFixture(third_party.Installed({
            extensions.BACKENDS: {'acme': 'builtins:repr'}}))
        self.assert_nothing_is_offered(
            'backend acme', 'is no gpgpu_plugin.host.base.Backend')

    def test_host_without_any_backend(self):
        self.useFixture(fixtures.MockPatchObject(
            extension.ExtensionManager, 'ENTRY_POINT_CACHE',
            {extensions.BACKENDS: []}))
        self.assert_nothing_is_offered('no backend is installed')


class OfferTest(compute_base.ComputeTestCase):
    """What a host without one of its backends offers to Placement."""

    def start_again(self):
        self.tracker = self.make_tracker()
        self.tracker.run_once()
        self.update_tree()
        self.tracker.run_once()

    def test_host_offers_nothing_until_the_backend_can_be_loaded(self):
        [used] = self.boot(1)
        before = self.states(), self.placement()
        with third_party.Installed(targets(acme=Broken)):
            self.start_again()
            self.assertEqual({'assigned': 1}, self.states())
            total, reserved = self.placement()
            self.assertEqual(1, total - reserved)
            self.assertRaises(
                exception.ClaimDenied, self.tracker.session.call,
                self.api.claim, self.request(1, 'i2'))
        self.start_again()
        self.assertEqual(before, (self.states(), self.placement()))
        self.assertEqual(
            {used}, make.uuids(self.tracker.assignments.of_instance('i1')))
