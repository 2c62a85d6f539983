# SPDX-License-Identifier: Apache-2.0
"""Tests of the step that boots a guest with the GPU."""

import dataclasses
import hashlib
import json
import pathlib
import re
import types

import fixtures

from gpgpu_plugin import exception
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.host import base
from gpgpu_plugin.host.cleaning import scrub_guest
from tests.unit.host.cleaning import card

MIB = 1024 ** 2


class Guests:
    """Guests that only say what the test wants.

    :param say: returns the output, given the nonce
    """

    def __init__(self, say, in_time=True):
        self.say = say
        self.in_time = in_time
        self.ran = None

    def run(self, booted, seconds, until):
        self.ran = booted, seconds
        nonce = re.search(r'GPGPU_NONCE=(\w+)', booted.command_line).group(1)
        output = self.say(nonce)
        self.complete = until(output)
        return base.EndedGuest(output=output, in_time=self.in_time)


class ScrubGuestCase(card.CardCase):

    memory_mib = 80

    def setUp(self):
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.kernel = self.path / 'vmlinuz'
        self.initrd = self.path / 'initrd.img'
        self.kernel.write_bytes(b'kernel')
        self.initrd.write_bytes(b'initrd')
        self.step = scrub_guest.ScrubGuestStep()

    def line(self, nonce, **changes):
        """Return what a guest prints that has verified all."""
        return json.dumps({
            'nonce': nonce, 'vendor': self.gpu.vendor,
            'device': self.gpu.device, 'memory_bytes': 80 * MIB,
            'verified_bytes': 80 * MIB, 'seconds': 3,
            'program': '/bin/scrub-bar', 'detail': 'through BAR 1'} | changes)

    def settings(self, guests, **changes):
        return base.ScrubGuest(**{
            'path': str(self.path), 'memory_mib': 256, 'seconds': 77,
            'guests': guests, **changes})

    def target_with(self, settings, **kwargs):
        target = self.target(**{'memory_mib': self.memory_mib, **kwargs})
        return dataclasses.replace(target, access=dataclasses.replace(
            target.access, scrub_guest=settings))

    def run_with(self, say, *, in_time=True, **kwargs):
        self.guests = Guests(say, in_time)
        return self.step.run(self.target_with(
            self.settings(self.guests), **kwargs))

    def run_line(self, **changes):
        """Run the step with a guest that prints one line with its nonce."""
        return self.run_with(lambda nonce: self.line(nonce, **changes))


class ReportTest(ScrubGuestCase):

    def test_all_memory_verified_passes(self):
        result = self.run_with(
            lambda nonce: f'[ 0.1] kernel\n\n{self.line(nonce)}\ndone')
        self.assertEqual('passed', result.outcome)
        self.assertEqual({
            'bytes_of_memory': 80 * MIB, 'bytes_verified': 80 * MIB,
            'bytes_seen_by_guest': 80 * MIB, 'guest_seconds': 3,
            'program': '/bin/scrub-bar', 'detail': 'through BAR 1',
            'kernel_sha256': hashlib.sha256(b'kernel').hexdigest(),
            'initrd_sha256': hashlib.sha256(b'initrd').hexdigest(),
        }, result.facts)
        self.assertTrue(self.guests.complete)

    def test_guest_gets_the_card_and_what_it_is_to_do(self):
        self.run_line()
        booted, seconds = self.guests.ran
        self.assertEqual(77, seconds)
        self.assertEqual(((self.address,), 256, str(self.kernel),
                          str(self.initrd)), (
            booted.functions, booted.memory_mib, booted.kernel,
            booted.initrd))
        self.assertRegex(
            booted.command_line,
            f'^GPGPU_NONCE=[0-9a-f]{{32}} GPGPU_IDS=10de:{self.gpu.device} '
            f'GPGPU_MEMORY_MIB=80$')

    def test_nonce_of_a_run_is_no_other_run_s(self):
        nonces = []
        for _ in range(2):
            self.run_with(lambda nonce: nonces.append(nonce) or '')
        self.assertEqual(2, len(set(nonces)))

    def test_byte_that_was_not_verified_fails(self):
        result = self.run_line(verified_bytes=80 * MIB - 1)
        self.assertEqual('failed', result.outcome)
        self.assertIn(f'1 of {80 * MIB} bytes did not keep', result.reason)

    def test_part_of_the_memory_says_nothing(self):
        result = self.run_line(
            memory_bytes=80 * MIB - 1, verified_bytes=80 * MIB - 1)
        self.assertEqual('inapplicable', result.outcome)
        self.assertIn(f'sees {80 * MIB - 1} of {80 * MIB} bytes',
                      result.reason)

    def test_more_memory_than_the_variant_says_is_all_verified(self):
        more = 81 * MIB
        result = self.run_line(memory_bytes=more, verified_bytes=more)
        self.assertEqual(('passed', more), (
            result.outcome, result.facts['bytes_of_memory']))
        result = self.run_line(memory_bytes=more)
        self.assertEqual('failed', result.outcome)

    def test_other_gpu_fails(self):
        result = self.run_line(device='ffff')
        self.assertEqual('failed', result.outcome)
        self.assertIn('had 10de:ffff, and not', result.reason)

    def test_unknown_size_of_memory_starts_no_guest(self):
        result = self.run_with(self.line, memory_mib=None)
        self.assertEqual('inapplicable', result.outcome)
        self.assertIn('--memory-mib', result.reason)
        self.assertIsNone(self.guests.ran)


class OutputTest(ScrubGuestCase):

    def assert_no_report(self, say, **kwargs):
        result = self.run_with(say, **kwargs)
        self.assertEqual('failed', result.outcome)
        self.assertNotIn('bytes_verified', result.facts)
        return result

    def test_report_with_another_nonce_is_none(self):
        result = self.assert_no_report(lambda nonce: self.line('0' * 32))
        self.assertIn('ended without a report that has its nonce',
                      result.reason)
        self.assertFalse(self.guests.complete)

    def test_report_with_another_nonce_hides_none(self):
        result = self.run_with(lambda nonce: '\n'.join([
            self.line('0' * 32), self.line(nonce, verified_bytes=1)]))
        self.assertEqual('failed', result.outcome)
        self.assertEqual(1, result.facts['bytes_verified'])

    def test_first_report_counts(self):
        result = self.run_with(lambda nonce: '\n'.join([
            self.line(nonce, verified_bytes=1), self.line(nonce)]))
        self.assertEqual('failed', result.outcome)

    def test_report_that_cannot_be_right_is_none(self):
        for changes in ({'verified_bytes': 80 * MIB + 1},
                        {'verified_bytes': -1, 'memory_bytes': -1},
                        {'verified_bytes': True, 'memory_bytes': True},
                        {'verified_bytes': 80.0 * MIB},
                        {'memory_bytes': str(80 * MIB)},
                        {'memory_bytes': None}, {'seconds': 'a'},
                        {'detail': 7}, {'program': 'x' * 201},
                        {'unknown': 1}):
            self.assert_no_report(
                lambda nonce, changes=changes: self.line(nonce, **changes))
        for text in ('', '7', '[]', 'null', '{}', '{"nonce": ', '"nonce"'):
            self.assert_no_report(lambda nonce, text=text: text)

    def test_end_of_the_output_is_evidence(self):
        result = self.assert_no_report(
            lambda nonce: 'x' * 3000 + ' scrub guest: no PCI function\n')
        self.assertTrue(result.facts['output'].endswith('no PCI function'))
        self.assertEqual(2000, len(result.facts['output']))
        self.assertLess(len(result.reason), 300)

    def test_guest_that_took_too_long_fails(self):
        result = self.assert_no_report(lambda nonce: 'began', in_time=False)
        self.assertIn('took longer than 77 s, and was ended; its output ends '
                      'with: began', result.reason)

    def test_report_in_the_last_moment_counts(self):
        self.assertEqual('passed', self.run_with(
            self.line, in_time=False).outcome)


class HostTest(ScrubGuestCase):

    def refusal(self, guests=None, **changes):
        return str(self.assertRaises(
            exception.HostNotReady, self.step.run, self.target_with(
                self.settings(guests, **changes))))

    def test_missing_image_blames_no_device(self):
        text = self.refusal(Guests(self.line), path=None)
        self.assertIn('[gpgpu_compute] scrub_guest_path', text)
        self.assertIn('tools/scrub-guest/build', text)
        for file in (self.initrd, self.kernel):
            file.unlink()
            self.assertIn(
                f'{file}: [gpgpu_compute] scrub_guest_path needs it, and it '
                f'cannot be read', self.refusal(Guests(self.line)))

    def test_driver_without_guests_blames_no_device(self):
        self.assertIn('needs gpgpu.GpuLibvirtDriver', self.refusal())

    def test_default_is_no_image(self):
        self.assertEqual(base.ScrubGuest(), self.host.access.scrub_guest)

    def test_limit_is_the_configured_one_and_more(self):
        target = self.target_with(self.settings(None, seconds=5000))
        self.assertEqual(5180, self.step.limit_for(target))

    def test_step_waits_until_nobody_has_the_card(self):
        users = [device_rules.DeviceUser.VFIO] * 2 + [None]
        target = dataclasses.replace(
            self.target_with(self.settings(Guests(self.line))),
            read=lambda: [types.SimpleNamespace(used_by=users.pop(0))])
        self.assertEqual('passed', self.step.run(target).outcome)
        self.assertEqual([], users)

    def test_card_that_stays_open_is_an_error(self):
        self.step.closing = 0.3
        target = dataclasses.replace(
            self.target_with(self.settings(Guests(self.line))),
            read=lambda: [types.SimpleNamespace(used_by=None),
                          types.SimpleNamespace(
                              used_by=device_rules.DeviceUser.VFIO)])
        exc = self.assertRaises(exception.HostError, self.step.run, target)
        self.assertIn('still has it open', str(exc))

    def test_nothing_is_booted_after_the_end(self):
        guests = Guests(self.line)
        target = self.target_with(self.settings(guests))
        target.ended.set()
        self.assertRaises(exception.HostError, self.step.run, target)
        self.assertIsNone(guests.ran)

    def test_policy_can_name_it(self):
        # All backends have it; it never changes while a host lives.
        object.__setattr__(self.host.access, 'scrub_guest',
                           self.settings(Guests(self.line)))
        self.use()
        verdict, results = self.clean(
            'reset+scrub-guest+settings', memory_mib=80)
        self.assertTrue(verdict.passed, verdict.failure)
        self.assertEqual(80 * MIB, results['scrub-guest'].facts[
            'bytes_verified'])
        self.use()
        verdict, _ = self.clean('reset+scrub-guest+settings', memory_mib=81)
        self.assertFalse(verdict.passed)
