# SPDX-License-Identifier: Apache-2.0
"""Tests of the defaults of knobs."""

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin import nvidia
from gpgpu_plugin.domain import cleaning

HOPPER = {'ecc': 'on', 'cc': 'off', 'ppcie': 'off'}


class DefaultsTest(base.BaseTestCase):

    def test_models_have_the_knobs_of_their_architecture(self):
        for device, expected in (
                ('1eb8', {'ecc': 'on'}), ('26b9', {'ecc': 'on'}),
                ('2235', {'ecc': 'on'}),
                ('20b5', {'ecc': 'on', 'mig': 'off'}), ('2330', HOPPER),
                ('2901', {'ecc': 'on', 'cc': 'off'}),
                ('2bb5', {'ecc': 'on', 'cc': 'off'})):
            self.assertEqual(expected, cleaning.default_knobs('10de', device),
                             device)

    def test_every_architecture_has_ecc_on(self):
        self.assertEqual(set(nvidia.Architecture), set(cleaning._DEFAULTS))
        for expected in cleaning._DEFAULTS.values():
            self.assertEqual('on', expected['ecc'])

    def test_other_models_have_none(self):
        for vendor, device in (('10de', '1db6'), ('1002', '74a1'),
                               (None, None)):
            self.assertIsNone(cleaning.default_knobs(vendor, device))


class ParseTest(base.BaseTestCase):

    def test_object_of_texts_is_returned(self):
        self.assertEqual({'ecc': 'on', 'nvlink_blocked': 'none'},
                         cleaning.parse_knobs(
                             '{"ecc": "on",\n "nvlink_blocked": '
                             '"none"}\n'))

    def test_anything_else_is_refused(self):
        for text in ('', 'ecc: on', '[]', '"ecc"', '{"ecc": true}',
                     '{"ecc": null}', '{"ECC": "on"}', '{"": "on"}',
                     '{"ecc": "on"} {"ecc": "off"}', '{"ecc": "o'):
            exc = self.assertRaises(exception.Invalid, cleaning.parse_knobs,
                                    text)
            self.assertIn('{"ecc": "on", "mig": "off"}', str(exc))

    def test_text_is_sorted(self):
        self.assertEqual('{"cc": "off", "ecc": "on"}',
                         cleaning.knobs_text({'ecc': 'on', 'cc': 'off'}))


class DifferencesTest(base.BaseTestCase):

    def test_defaults_do_not_differ(self):
        self.assertEqual([], cleaning.knob_differences(
            {**HOPPER, 'other': 'on'}, HOPPER))

    def test_differences_are_named(self):
        self.assertEqual(
            ['ecc is off, not on', 'cc is devtools, not off'],
            cleaning.knob_differences(
                {'ecc': 'off', 'cc': 'devtools', 'ppcie': 'off'}, HOPPER))

    def test_unknown_is_never_a_default(self):
        self.assertEqual(
            ['ecc is unknown, not on', 'cc is unknown, not off'],
            cleaning.knob_differences({'ecc': 'unknown', 'ppcie': 'off'},
                                      HOPPER))
        self.assertEqual(3, len(cleaning.knob_differences({}, HOPPER)))
