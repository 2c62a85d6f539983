# SPDX-License-Identifier: Apache-2.0
"""Tests of the ledger as operators read it: pages, and its end."""

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.domain import ledger
from tests.unit.conductor import base


class LedgerTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        for _ in range(3):
            [used] = [found for found in self.boot(8).assignments
                      if found.address == '0000:00:00.0']
            self.uuid = used.device_uuid
            releases.release(self.db, base.uuids(self.claim(8)))
            self.clean_all()

    def numbers(self, *args):
        return [record.number for record in history.list_cleanings(
            self.db, self.uuid, *args)]

    def test_records_are_listed_in_pages(self):
        self.assertEqual([1, 2, 3], self.numbers())
        self.assertEqual([1, 2], self.numbers(2))
        self.assertEqual([3], self.numbers(2, '2'))
        self.assertEqual([], self.numbers(2, '3'))

    def test_marker_that_is_no_number_is_refused(self):
        for marker in ('x', '-1', '1.0', '\u0661'):
            self.assertRaises(exception.Invalid, self.numbers, 2, marker)

    def test_head_is_that_of_the_last_record(self):
        last = history.list_cleanings(self.db, self.uuid)[-1]
        expected = ledger.Head(
            device_uuid=self.uuid, number=3, hash=last.hash,
            was_cleaned=True)
        self.assertEqual(expected, history.ledger_head(self.db, self.uuid))
        host_admin.delete(self.db, 'h1')
        self.assertEqual(expected, history.ledger_head(self.db, self.uuid))

    def test_unknown_device_is_not_found(self):
        self.assertRaises(
            exception.NotFound, history.ledger_head, self.db, 'none')
        self.assertRaises(
            exception.NotFound, history.list_cleanings, self.db, 'none')


class NewDeviceTest(base.ConductorTestCase):

    cleaned_before = new_are_clean = False

    def test_device_that_was_never_cleaned_has_an_empty_chain(self):
        uuid = device_admin.list_all(self.db)[0].uuid
        self.assertEqual(ledger.Head(device_uuid=uuid),
                         history.ledger_head(self.db, uuid))
        self.assertEqual((), history.list_cleanings(self.db, uuid))
