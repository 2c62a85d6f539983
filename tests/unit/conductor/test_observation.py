# SPDX-License-Identifier: Apache-2.0
"""Tests of what a scan makes of the rows of a host, on values alone."""

import datetime

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslotest import base as oslotest_base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import observation
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import variant as variant_rules
from tests.unit.conductor import base

AT = datetime.datetime(2026, 11, 29)
SLOTS = 3
_E = device_rules.DeviceEvent


def empty_host():
    """Return the rows of a host that has not reported yet."""
    return host_rows.HostRows(
        host=host_db.HostRow(
            key_number=None,
            id=1, name='h1', node='h1', node_uuid=base.NODE, generation=1,
            changed_at=0, deleted=0, problems='[]', reported_at=None,
            session=1, session_began_at=AT, variants_version=0,
            plugin_version='1', start_uuid='s1', machine='{}', heard_at=0,
            takeover=False, report_number=0, comparison_number=0,
            report_digest=None, report_generation=0),
        newest_version=0, by_id={}, assignments=(), bare_groups=(), holds=())


def variants():
    """Return the only variant."""
    row = variant_db.VariantRow(
        id=1, version=0, deleting=False,
        enabled_types=frozenset({'passthrough'}), value=variant_rules.check(
            variant_rules.Variant(
                name='H100', vendor='10de', device='2330')))
    return variant_matching.Variants(rows={'H100': row}, changes=())


def observe(rows, functions, **fields):
    """Return the rows after a scan of a host that no other host knows of."""
    return observation.observe(rows, base.scan(functions, **fields),
                               observation.Facts(
        places={}, unknown=(), seen=(), decisions={}, variants=variants(),
        at=AT), rebooted=False).rows


def clean(rows):
    """Return the rows after the cleaning of all devices that can be cleaned.
    """
    for device in rows.devices:
        if (device.state == 'dirty' and device.present
                and not device_rules.is_withdrawn(device.holds)):
            rows = rows.apply(device, _E.CLEAN).apply(
                device, _E.CLEAN_PASSED, clean_token=None,
                cleaned_steps='reset+settings+canary')
    return rows


class ObserveTest(oslotest_base.BaseTestCase):

    def test_new_gpu_is_dirty_in_the_group_of_its_variant(self):
        rows = observe(empty_host(), [base.function(0)])
        [device] = rows.devices
        [group] = rows.groups
        self.assertEqual(('dirty', group.id, True), (
            device.state, device.group_id, device.present))
        self.assertEqual('H100', group.variant.name)
        self.assertEqual(['appeared', 'distrust'],
                         [event.kind for event in rows.events])

    def test_scan_that_finds_nothing_new_changes_nothing(self):
        rows = clean(observe(empty_host(), [base.function(0)]))
        self.assertEqual(rows, observe(rows, [base.function(0)]))

    def test_restored_host_must_send_its_book(self):
        rows = empty_host().hold_host(device_rules.HostHoldKind.RESTORED,
                                      held=True)
        self.assertRaises(exception.Invalid, observe, rows, [])
        self.assertFalse(observe(rows, [], assignments=()).is_held(
            device_rules.HostHoldKind.RESTORED))

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.lists(st.permutations([*'abcd', None, None]), max_size=6))
    def test_cards_are_known_wherever_they_are(self, scans):
        rows, uuids = empty_host(), {}
        for order in scans:
            found = dict(enumerate(order[:SLOTS]))
            functions = [
                base.function(slot, dsn=f'48-{card}', serial=None)
                for slot, card in found.items() if card is not None]
            before = {device.uuid: device.stable_id
                      for device in rows.devices if device.present}
            rows = observe(rows, functions)
            present = {device.stable_id: device for device in rows.devices
                       if device.present}
            self.assertEqual({function.id for function in functions},
                             present.keys())
            for slot, card in found.items():
                if card is None:
                    continue
                device = present[base.function(slot).id]
                self.assertEqual(uuids.setdefault(card, device.uuid),
                                 device.uuid)
                if before.get(device.uuid) != device.stable_id:
                    self.assertNotEqual('available', device.state)
            # What the same scan finds once more is no news.
            self.assertEqual(rows, observe(rows, functions))
            rows = clean(rows)
