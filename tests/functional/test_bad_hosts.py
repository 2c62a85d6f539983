# SPDX-License-Identifier: Apache-2.0
"""Builds on broken hosts.

The log names the reason, the build goes to the next host, and the device gets
the state that fits the failure.
"""

from __future__ import annotations

import errno
import os
import shutil
import typing

import fixtures

from gpgpu_plugin import privsep
from gpgpu_plugin.host.fake import kernel
from tests.fixtures import libvirt_cloud


class BadHostTest(libvirt_cloud.GpuLibvirtCloud):
    """The first of two servers is broken, without any guest on it."""

    machines: typing.ClassVar[dict[str, str]] = {
        'gpu1': 'pcie-l40s-4', 'gpu2': 'pcie-l40s-4'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('L40S', '--vendor', '10de', '--device', '26b9'),)

    def setUp(self) -> None:
        super().setUp()
        self.backend = self.driver().gpu_tracker.backend

    def _builds_elsewhere(self, *words: str, **states: int) -> None:
        """Check that a server is built on the second host.

        :param words: words that the log has
        :param states: states of the first host's devices
        """
        server = self.boot(self.flavor(L40S=2))
        self.assertEqual('gpu2', server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual(2, len(self.hostdevs(server, 'gpu2')))
        for word in words:
            self.assertIn(word, self.stdlog.logger.output)
        self.wait_states('gpu1', 'L40S', **states)
        self.wait_for(
            lambda: self._offered() == states['available'], 'offered')
        self.assertNotIn('vfio-pci', self.bound_drivers('gpu1').values())
        self.assertEqual(0, self.usage('gpu1', 'L40S'))

    def _offered(self) -> int:
        total, reserved = self.inventory('gpu1', 'L40S')
        return total - reserved

    def _first_host_works(self, count: int = 4) -> None:
        self.wait_offered()
        self.boot(self.flavor(L40S=count), host='gpu1')

    def _reason(self) -> str:
        """Return the reason of the only quarantined device."""
        [found] = self.devices('--state', 'quarantined')
        return str(self.listing('device', 'show', found['uuid'])['reason'])

    def test_build_without_vfio_pci_goes_to_next_host(self) -> None:
        driver = self.sysfs('gpu1') / 'bus/pci/drivers/vfio-pci'
        shutil.rmtree(driver)

        def fails(_module: str) -> typing.NoReturn:
            raise OSError(1, 'modprobe vfio-pci failed: not found')
        with fixtures.MockPatchObject(
                self.backend.binder, '_load_vfio', fails):
            self._builds_elsewhere('vfio-pci: cannot be loaded', 'not found',
                          available=4)
        driver.mkdir()
        for name in ('bind', 'unbind'):
            (driver / name).touch()
        self._first_host_works()

    def test_host_with_iommu_off_offers_nothing(self) -> None:
        links = {
            link: os.readlink(link) for link in (
                self.sysfs('gpu1') / 'bus/pci/devices').glob('*/iommu_group')}
        for link in links:
            link.unlink()
        self.restart_compute()
        self.wait_for(lambda: sum(
            'in no IOMMU group' in (device['reason'] or '')
            for device in self.devices(
                '--host', 'gpu1', '--state', 'unmanaged')) == 4, 'unmanaged')
        self.wait_for(lambda: self._offered() == 0, 'nothing is offered')
        server = self.boot(self.flavor(L40S=2))
        self.assertEqual('gpu2', server['OS-EXT-SRV-ATTR:host'])
        for link, target in links.items():
            link.symlink_to(target)
        self.restart_compute()
        self._first_host_works()

    def test_busy_device_is_quarantined_and_released(self) -> None:
        self.backend.kernel.faults['vfio-pci/bind'] = errno.EBUSY
        # The second of the two was not touched.
        self._builds_elsewhere(
            'Device or resource busy', quarantined=1, available=3)
        self.assertIn('busy', self._reason())
        self.backend.kernel.faults.clear()
        [broken] = self.devices('--state', 'quarantined')
        self.manage('device', 'release', broken['uuid'])
        self.wait_states('gpu1', 'L40S', available=4)
        self._first_host_works()

    def test_driver_that_does_not_answer_quarantines_device(self) -> None:
        write = self.backend.binder._write_attribute

        def blocks(path: str, value: str) -> None:
            if path.endswith('/bind'):
                raise TimeoutError(
                    errno.ETIMEDOUT, 'the kernel did not answer within 60 s')
            write(path, value)
        with fixtures.MockPatchObject(
                self.backend.binder, '_write_attribute', blocks):
            self._builds_elsewhere(
                'did not answer', quarantined=1, available=3)
        self.assertIn('did not answer', self._reason())

    def test_build_without_helper_goes_to_next_host(self) -> None:
        def missing(path: str, value: str = '') -> typing.NoReturn:
            raise privsep.HelperUnavailable(
                errno.EPERM, 'the privileged helper does not start')
        binder = self.backend.binder
        with (fixtures.MockPatchObject(binder, '_write_attribute', missing),
              fixtures.MockPatchObject(binder, '_read_file', missing)):
            self._builds_elsewhere('the privileged helper does not start',
                          available=4)
        self._first_host_works()

    def test_gpu_that_does_not_answer_is_quarantined(self) -> None:
        first = min(device['address'] for device in self.devices(
            '--host', 'gpu1', '--variant', 'L40S'))
        config = self.sysfs('gpu1') / 'bus/pci/devices' / first / 'config'
        alive = config.read_bytes()
        config.write_bytes(b'\xff' * len(alive))
        server = self.boot(self.flavor(L40S=2))
        self.assertEqual('gpu2', server['OS-EXT-SRV-ATTR:host'])
        self.assertIn('the device does not answer',
                      self.stdlog.logger.output)
        # As long as it is dead it is nobody's, and quarantined again then.
        self.run_once('gpu1')
        self.wait_states('gpu1', 'L40S', available=3)
        config.write_bytes(alive)
        self.run_once('gpu1')
        self.wait_states('gpu1', 'L40S', quarantined=1, available=3)
        self.assertIn('does not answer', self._reason())

    def test_gpu_that_died_leaves_the_offer_until_it_comes_back(self) -> None:
        first = min(device['address'] for device in self.devices(
            '--host', 'gpu1', '--variant', 'L40S'))
        config = (self.sysfs('gpu1') / 'bus/pci/devices' / first / 'config')
        alive = config.read_bytes()
        config.write_bytes(b'\xff' * len(alive))
        self.run_once('gpu1')
        self.wait_for(lambda: self._offered() == 3, 'offered')
        server = self.boot(self.flavor(L40S=4))
        self.assertEqual('gpu2', server['OS-EXT-SRV-ATTR:host'])
        dead = self.listing('device', 'show', 'gpu1', first)
        self.assertEqual(('unmanaged', 'failed'),
                         (dead['shown_state'], dead['health']))
        self.assertIn('does not answer', dead['reason'])

        config.write_bytes(alive)
        self.run_once('gpu1')
        self.wait_for(lambda: self._offered() == 4, 'offered')
        # Not before it was cleaned: nobody knows what happened to it.
        self.assertEqual(
            ['clean_passed', 'clean_started', 'distrust', 'health'],
            [event['kind'] for event in self.listing(
                'event', 'list', '--device', dead['uuid'])][:4])
        self._first_host_works()

    def test_gpu_that_died_stays_with_its_server(self) -> None:
        server = self.boot(self.flavor(L40S=4), host='gpu1')
        first = min(device['address'] for device in self.devices(
            '--host', 'gpu1', '--variant', 'L40S'))
        (self.sysfs('gpu1') / 'bus/pci/devices' / first / 'config'
         ).write_bytes(b'\xff' * 4096)
        self.run_once('gpu1')
        self.assertEqual(4, len(self.devices_of(server)))
        dead = self.listing('device', 'show', 'gpu1', first)
        self.assertEqual(('assigned', 'failed'),
                         (dead['shown_state'], dead['health']))
        self.assertIn('does not answer', dead['reason'])
        self.delete(server)
        self.wait_for(lambda: self._offered() == 3, 'offered')
        self.wait_for(lambda: dead['uuid'] in {
            held['device'] for held in self.listing(
                'hold', 'list', '--kind', 'failed')}, 'held')
        # As long as it is dead it is nobody's.
        self.assertIn(self.listing('device', 'show', 'gpu1', first)[
            'shown_state'], ('quarantined', 'unmanaged'))

    def test_gpu_with_a_narrow_link_is_shown_and_still_offered(self) -> None:
        first = min(device['address'] for device in self.devices(
            '--host', 'gpu1', '--variant', 'L40S'))
        folder = self.sysfs('gpu1') / 'bus/pci/devices' / first
        kernel.write_link(folder, width=4)
        kernel.write_errors(folder, nonfatal=3)
        self.run_once('gpu1')
        [ill] = [device for device in self.devices('--host', 'gpu1')
                 if device['health'] == 'degraded']
        self.assertEqual((first, 'available'),
                         (ill['address'], ill['shown_state']))
        shown = self.listing('device', 'show', 'gpu1', first)
        self.assertIn('has width x4', shown['health_reason'])
        self.assertIn('AER nonfatal 3', shown['health_reason'])
        self.assertEqual(3, shown['errors']['aer_nonfatal'])
        [event] = self.listing(
            'event', 'list', '--kind', 'health', '--long')
        self.assertIn('AER nonfatal 3', event['detail'])
        self.assertIn(f'health on gpu1; by host gpu1; device {first}',
                      self.stdlog.logger.output)
        self.assertEqual(4, self._offered())
        # Its cleaning ends the count of errors, and not the narrow link.
        self.delete(self.boot(self.flavor(L40S=4), host='gpu1'))
        self.wait_for(lambda: self._offered() == 4, 'offered')
        self.run_once('gpu1')
        self.assertNotIn('AER', self.listing(
            'device', 'show', 'gpu1', first)['health_reason'])

    def test_build_that_fails_on_all_hosts_is_in_error(self) -> None:
        for host in self.machines:
            self.driver(host).gpu_tracker.backend.kernel.faults[
                'vfio-pci/bind'] = errno.EBUSY
        server = self.boot(self.flavor(L40S=2), 'ERROR')
        self.assertIn('Exceeded maximum number of retries',
                      server['fault']['message'])
        self.assertIn('Device or resource busy', self.stdlog.logger.output)
        self.wait_for(lambda: self.usage('gpu1', 'L40S') == 0, 'usage 0')

    def test_device_without_reset_is_quarantined(self) -> None:
        server = self.boot(self.flavor(L40S=1), host='gpu1')
        self.backend.kernel.faults['/reset'] = errno.ENOTTY
        self.delete(server)
        self.wait_states('gpu1', 'L40S', quarantined=1, available=3)
        self.assertIn('reset', self._reason())
        self.wait_offered()
        self.boot(self.flavor(L40S=3), host='gpu1')
