# SPDX-License-Identifier: Apache-2.0
"""Tests of guests of libvirt that get a card."""

import threading
import types
from unittest import mock

import fixtures
from lxml import etree
from nova.virt.libvirt import host as nova_host
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.host import base as base_host
from gpgpu_plugin.virt import guests
from gpgpu_plugin.virt import libvirt as virt_libvirt

GUEST = base_host.Guest(
    functions=('0000:3b:00.0', '0000:3b:00.1'), kernel='/k & l',
    initrd='/initrd', command_line='GPGPU_NONCE=1', memory_mib=256)


class Error(Exception):
    """Error of the fake libvirt, with a code."""

    def get_error_code(self):
        return self.args[1] if len(self.args) > 1 else 0


class GuestsCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.ended = threading.Event()
        self.domain = mock.Mock(**{'name.return_value': 'gpgpu-scrub-x',
                                   'destroy.side_effect': self.ended.set,
                                   'isActive.side_effect': Error('x', 42)})
        self.stream = mock.Mock(**{'recv.side_effect': [b'a', b'\xff', b'']})
        self.connection = mock.Mock(**{
            'createXML.return_value': self.domain,
            'newStream.return_value': self.stream})
        self.libvirt = types.SimpleNamespace(
            open=mock.Mock(return_value=self.connection),
            libvirtError=Error, VIR_DOMAIN_START_AUTODESTROY=2,
            VIR_DOMAIN_START_PAUSED=1, VIR_ERR_NO_DOMAIN=42,
            VIR_ERR_OPERATION_INVALID=55)
        self.useFixture(fixtures.MockPatchObject(
            nova_host, 'libvirt', self.libvirt))
        self.guests = self.guests_of('kvm')

    @staticmethod
    def guests_of(virt_type):
        return guests.LibvirtGuests(
            'qemu:///system', virt_type, virt_libvirt.hostdevs)

    def run_guest(self, seconds=60, until=lambda text: False):
        return self.guests.run(GUEST, seconds, until)


class RunTest(GuestsCase):

    def test_guest_runs_until_it_closes_its_console(self):
        self.assertEqual(
            base_host.EndedGuest(output='a\ufffd', in_time=True),
            self.run_guest())
        # It ends with its connection, and nothing it says is lost.
        self.assertEqual(3, self.connection.createXML.call_args.args[1])
        self.assertEqual(
            [mock.call.openConsole(None, self.stream), mock.call.resume(),
             mock.call.destroy(), mock.call.isActive()],
            self.domain.mock_calls)
        self.connection.close.assert_called_once_with()

    def test_guest_is_ended_when_its_output_is_complete(self):
        self.stream.recv.side_effect = [b'no', b' yes', b'never read']
        self.assertEqual('no yes', self.run_guest(
            until=lambda text: 'yes' in text).output)
        self.assertTrue(self.domain.destroy.called)

    def test_only_the_end_of_the_output_is_kept(self):
        self.stream.recv.side_effect = [*[b'x' * 4096] * 20, b'end', b'']
        output = self.run_guest().output
        self.assertEqual(64 * 1024, len(output))
        self.assertTrue(output.endswith('xend'))

    def test_guest_is_ended_when_its_time_is_up(self):
        def recv(size):
            self.assertTrue(self.ended.wait(60))
            raise Error('the console is gone')
        self.stream.recv.side_effect = recv
        self.assertEqual(base_host.EndedGuest(output='', in_time=False),
                         self.run_guest(seconds=0.1))

    def test_guest_that_has_ended_itself_is_no_error(self):
        for code in (42, 55):
            self.stream.recv.side_effect = [b'']
            self.domain.destroy.side_effect = Error('gone', code)
            self.assertTrue(self.run_guest().in_time)

    def test_guest_that_cannot_be_ended_is_an_error(self):
        self.domain.destroy.side_effect = Error('busy', 38)
        self.domain.isActive.side_effect = Error('busy', 38)
        exc = self.assertRaises(exception.HostError, self.run_guest)
        self.assertNotIsInstance(exc, exception.HostNotReady)
        self.assertIn('0000:3b:00.0: its scrub guest cannot be ended',
                      str(exc))
        self.connection.close.assert_called_once_with()

    def test_call_returns_when_the_guest_has_ended(self):
        self.domain.isActive.side_effect = [1, 1, 0]
        self.run_guest()
        self.assertEqual(3, self.domain.isActive.call_count)
        self.useFixture(fixtures.MockPatchObject(guests, '_ENDING', 0))
        self.stream.recv.side_effect = [b'']
        self.domain.isActive.side_effect = [1]
        exc = self.assertRaises(exception.HostError, self.run_guest)
        self.assertIn('still runs', str(exc))

    def test_guest_that_cannot_be_started_blames_no_device(self):
        for method in (self.connection.createXML, self.libvirt.open):
            method.side_effect = Error('no memory')
            exc = self.assertRaises(
                exception.HostNotReady, self.run_guest)
            self.assertIn('its scrub guest cannot be started', str(exc))
        self.assertFalse(self.domain.destroy.called)
        self.connection.close.assert_called_once_with()

    def test_guest_without_a_console_is_ended(self):
        self.domain.openConsole.side_effect = Error('no console')
        self.assertRaises(exception.HostNotReady, self.run_guest)
        self.domain.destroy.assert_called_once_with()


class DomainTest(GuestsCase):

    def xml(self):
        self.run_guest()
        return etree.fromstring(self.connection.createXML.call_args.args[0])

    def test_domain_has_the_card_and_nothing_else(self):
        domain = self.xml()
        self.assertEqual(
            ['controller', 'memballoon', 'serial', 'hostdev', 'hostdev'],
            [device.tag for device in domain.find('devices')])
        self.assertEqual(['0x0', '0x1'], [
            address.get('function') for address in domain.findall(
                './devices/hostdev/source/address')])
        # libvirt binds none of them to a driver.
        self.assertEqual({'no'}, {
            hostdev.get('managed')
            for hostdev in domain.findall('./devices/hostdev')})

    def test_firmware_of_the_card_does_not_run_in_the_guest(self):
        """An option ROM would read the nonce and print a report."""
        roms = [hostdev.find('rom') for hostdev in self.xml().findall(
            './devices/hostdev')]
        self.assertEqual([{'bar': 'off'}] * 2, [
            None if rom is None else dict(rom.attrib) for rom in roms])

    def test_domain_boots_the_image_once(self):
        domain = self.xml()
        self.assertEqual(
            ('256', '/k & l', '/initrd',
             'console=ttyS0 quiet panic=-1 GPGPU_NONCE=1'),
            tuple(domain.findtext(path) for path in (
                'memory', 'os/kernel', 'os/initrd', 'os/cmdline')))
        for event in ('on_poweroff', 'on_reboot', 'on_crash'):
            self.assertEqual('destroy', domain.findtext(event))

    def test_name_of_a_domain_is_never_that_of_an_earlier_one(self):
        names = set()
        for _ in range(5):
            self.stream.recv.side_effect = [b'']
            names.add(self.xml().findtext('name'))
        self.assertEqual(5, len(names))
        for name in names:
            self.assertTrue(guests.is_scrub_guest(name))
            self.assertIn('0000:3b:00.0', name)

    def test_domain_has_the_host_s_cpu_under_kvm_only(self):
        domain = self.xml()
        self.assertEqual('kvm', domain.get('type'))
        self.assertEqual('host-passthrough', domain.find('cpu').get('mode'))
        self.stream.recv.side_effect = [b'']
        self.guests = self.guests_of('qemu')
        domain = self.xml()
        self.assertEqual('qemu', domain.get('type'))
        self.assertIsNone(domain.find('cpu'))


class EndAllTest(GuestsCase):

    def test_only_guests_of_ours_are_ended(self):
        other = mock.Mock(**{'name.return_value': 'instance-00000001'})
        self.connection.listAllDomains.return_value = [other, self.domain]
        self.guests.end_all()
        self.assertFalse(other.destroy.called)
        self.domain.destroy.assert_called_once_with()
        self.connection.close.assert_called_once_with()

    def test_libvirt_that_does_not_answer_is_no_error(self):
        self.connection.listAllDomains.return_value = [self.domain]
        self.domain.isActive.side_effect = Error('busy', 38)
        self.guests.end_all()
        self.libvirt.open.side_effect = Error('down')
        self.guests.end_all()

    def test_name_tells_guests_of_ours(self):
        self.assertTrue(guests.is_scrub_guest(
            'gpgpu-scrub-0000:3b:00.0'))
        self.assertFalse(guests.is_scrub_guest('instance-00000001'))
