# SPDX-License-Identifier: Apache-2.0

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain.allocation import request

UUID = '6ac9a8b2-3c63-4a0c-9f25-6e1f3f8e0f11'


class ParseTest(base.BaseTestCase):

    def test_names_of_devices(self):
        for value, expected in (
                (UUID, UUID), (f' {UUID.upper()} ', UUID),
                ('gpu1 0000:3b:00.0', 'gpu1 0000:3b:00.0'),
                ('gpu1:0000:3B:00.0', 'gpu1 0000:3b:00.0'),
                ('gpu1   3b:00.0', 'gpu1 0000:3b:00.0'),
                ('gpu1:3b:00.0', 'gpu1 0000:3b:00.0'),
                ('gpu1.example.org:10000:e1:00.0',
                 'gpu1.example.org 10000:e1:00.0')):
            with self.subTest(value):
                self.assertEqual([expected], list(map(
                    str, request.parse_hint([value]))))

    def test_result_is_read_again_as_the_same(self):
        names = request.parse_hint([UUID, 'gpu1 0000:3b:00.0'])
        self.assertEqual(names, request.parse_hint(list(map(str, names))))

    def test_other_text_is_refused_with_what_would_be_right(self):
        for value in ('', 'gpu1', '0000:3b:00.0', 'gpu1 0000:3b:00',
                      'gpu1 0000:3b:00.8', 'gpu1 0000:3b:20.0',
                      f'{"h" * 256} 0000:3b:00.0', 'g\x1b1 0000:3b:00.0',
                      f'{UUID} 0000:3b:00.0 x'):
            with self.subTest(value):
                exc = self.assertRaises(
                    exception.Invalid, request.parse_hint, [value])
                self.assertIn('compute1:0000:3b:00.0', str(exc))
                self.assertTrue(str(exc).isprintable())

    def test_number_of_devices_is_limited(self):
        names = [f'h 0000:{bus:02x}:00.0' for bus in range(65)]
        self.assertEqual(64, len(request.parse_hint(names[:64])))
        for wrong in ([], names):
            self.assertRaises(exception.Invalid, request.parse_hint, wrong)

    def test_device_is_named_once(self):
        exc = self.assertRaises(exception.Invalid, request.parse_hint, [
            'h 3b:00.0', 'h:0000:3b:00.0'])
        self.assertIn('each device once', str(exc))

    def test_hint_is_one_text_or_a_list(self):
        self.assertEqual((), request.devices_of_hint(None))
        self.assertEqual(request.devices_of_hint(UUID),
                         request.devices_of_hint([UUID]))
        self.assertRaises(exception.Invalid, request.devices_of_hint, [])


class RefusalTest(base.BaseTestCase):

    def test_refusals_say_what_to_do(self):
        for refusal, words in (
                (request.exact_not_allowed('p1'),
                 ('p1', 'exact_device_projects')),
                (request.exact_mixed(request.from_extra_specs({
                    'resources:VGPU': '1', 'resources:PGPU': '2'})),
                 ('2 of PGPU, 1 of VGPU', 'either')),
                (request.exact_elsewhere(request.parse_hint(['h 3b:00.0'])),
                 ('h 0000:3b:00.0', 'another host'))):
            for word in words:
                self.assertIn(word, refusal.detail)
