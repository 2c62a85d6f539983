# SPDX-License-Identifier: Apache-2.0
"""Tests of the labels of slots in SMBIOS."""

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin import smbios
from tests.fixtures import smbios as firmware

PORT, SWITCH, DOWN, GPU = (
    '0000:16:02.0', '0000:17:00.0', '0000:18:04.0', '0000:1a:00.0')
PATH = (PORT, SWITCH, DOWN, GPU)
UNKNOWN = 'ffff:ff:1f.7'


def found(*structures, path=PATH):
    return smbios.labels(firmware.table(*structures)).find(path)


class FindTest(base.BaseTestCase):

    def test_nearest_label_on_the_way_to_the_root_port_counts(self):
        slots = [firmware.slot(f'SLOT{number}', address)
                 for number, address in enumerate(PATH)]
        for count in range(len(PATH), 0, -1):
            self.assertEqual(f'SLOT{count - 1}', found(*slots[:count]))
        self.assertIsNone(found())
        self.assertIsNone(found(*slots, path=()))

    def test_functions_of_a_card_are_in_one_slot(self):
        slot = firmware.slot('CPU2 SLOT2', GPU)
        self.assertEqual(
            'CPU2 SLOT2', found(slot, path=(PORT, '0000:1a:00.1')))
        # Root ports are functions of one device as well, but lead elsewhere.
        self.assertIsNone(found(firmware.slot('SLOT1', '0000:00:01.0'),
                                path=('0000:00:01.1', GPU)))

    def test_bifurcated_slot_is_that_of_all_its_devices(self):
        other = '0001:1b:00.0'
        slot = firmware.slot('SLOT 3', GPU, other)
        self.assertEqual('SLOT 3', found(slot))
        self.assertEqual('SLOT 3', found(slot, path=(PORT, other)))

    def test_onboard_device_is_labelled_but_not_what_is_behind_it(self):
        self.assertEqual('Onboard', found(firmware.onboard('Onboard', GPU)))
        for structure in (firmware.onboard('Switch', SWITCH),
                          firmware.onboard('GPU', GPU, enabled=False)):
            self.assertIsNone(found(structure))


class FirmwareLiesTest(base.BaseTestCase):
    """What is ambiguous or contradicts itself is unknown."""

    def test_slot_that_is_not_in_use_has_no_label(self):
        for usage, label in ((1, 'A'), (2, 'A'), (3, None), (4, 'A'),
                             (5, None), (0, None)):
            self.assertEqual(label, found(
                firmware.slot('A', GPU, usage=usage)), usage)

    def test_unknown_address_and_placeholder_are_no_label(self):
        for structure in (
                firmware.slot('A', UNKNOWN),
                firmware.slot('A', '0000:ff:00.0'),
                firmware.slot(' To Be Filled By O.E.M. ', GPU),
                firmware.slot('x' * (smbios.MAX_LENGTH + 1), GPU),
                firmware.structure(9, bytes([1, 0xb6, 13, 4, 4, 0, 0, 0, 0]),
                                   'version 2.5, without an address')):
            self.assertIsNone(found(structure))
        self.assertEqual({}, smbios.labels(firmware.table(
            firmware.slot('A', '0000:00:00.0'))).slots)

    def test_label_of_two_slots_is_left_out(self):
        self.assertIsNone(found(
            firmware.slot('PCIE', GPU), firmware.slot('PCIE', PORT)))
        self.assertIsNone(found(
            firmware.slot('PCIE', GPU), firmware.slot('PCIE', UNKNOWN)))
        # The same structure twice says the same.
        self.assertEqual('PCIE', found(*[firmware.slot('PCIE', GPU)] * 2))

    def test_function_with_two_labels_has_that_of_its_bridge(self):
        self.assertEqual('C', found(
            firmware.slot('A', GPU), firmware.onboard('B', GPU),
            firmware.slot('C', PORT)))


class MalformedTest(base.BaseTestCase):

    def test_what_precedes_a_malformed_structure_counts(self):
        good = firmware.slot('A', GPU)
        for broken in (b'\x09\x03\x00\x00\x00\x00', b'\x09', b'\x09\xff\0\0',
                       firmware.slot('B', SWITCH)[:-1]):
            self.assertEqual('A', smbios.labels(good + broken).find(PATH))

    def test_number_of_a_missing_string_is_no_label(self):
        for number in (0, 2, 255):
            fields = bytearray(firmware.slot('A', GPU))
            fields[4] = number
            self.assertIsNone(smbios.labels(bytes(fields)).find(PATH))

    @given(st.lists(st.one_of(
        st.binary(max_size=80),
        st.builds(lambda fields, text, kind: firmware.structure(
            kind, fields) [:-2] + text + b'\0\0',
            st.binary(max_size=120), st.binary(max_size=40),
            st.sampled_from([9, 41, 0, 127]))), max_size=8).map(b''.join))
    def test_any_bytes_are_read(self, table):
        selected = smbios.selected(table)
        self.assertLessEqual(len(selected), len(table))
        found = smbios.labels(table)
        self.assertEqual(found, smbios.labels(selected))
        for label in (*found.slots.values(), *found.onboard.values()):
            self.assertTrue(0 < len(label) <= smbios.MAX_LENGTH)


class SelectedTest(base.BaseTestCase):

    def test_only_structures_with_labels_are_selected(self):
        labels = (firmware.slot('A', GPU), firmware.onboard('B', SWITCH))
        self.assertEqual(
            b''.join(labels), smbios.selected(firmware.table(*labels)))
