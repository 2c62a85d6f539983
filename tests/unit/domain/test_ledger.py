# SPDX-License-Identifier: Apache-2.0
"""Tests of the chain of records: any change of it is found."""

import dataclasses
import hashlib
import json

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import ledger

_TEXTS = st.none() | st.text(max_size=8)
_RESULTS = st.builds(
    cleaning.StepResult, step=st.text(max_size=8),
    outcome=st.sampled_from(cleaning.StepOutcome), reason=st.text(max_size=8),
    facts=st.dictionaries(st.text(max_size=4),
                          st.text(max_size=8) | st.integers()),
    seconds=st.floats())
_ENTRIES = st.builds(
    ledger.Entry, device_uuid=st.just('d1'), number=st.just(0),
    previous_hash=st.just(''), host=st.text(max_size=8),
    stable_id=st.text(max_size=8), address=st.text(max_size=8),
    serial=_TEXTS, variant=_TEXTS, verdict=st.sampled_from(ledger.Verdict),
    reason=_TEXTS, policy=st.text(max_size=8),
    steps=st.lists(st.text(max_size=8), max_size=2).map(tuple),
    results=st.lists(_RESULTS, max_size=2).map(tuple), request=_TEXTS,
    attempt=_TEXTS, assignment_uuid=_TEXTS, instance_uuid=_TEXTS,
    project_id=_TEXTS, actor=_TEXTS, started_at=_TEXTS,
    finished_at=st.text(max_size=8))


def entry(**fields):
    return ledger.Entry(**{
        'device_uuid': 'd1', 'number': 0, 'previous_hash': '', 'host': 'h1',
        'stable_id': 's1', 'address': 'a1', 'verdict': ledger.Verdict.PASSED,
        'policy': 'default', 'finished_at': '2026-11-23T12:00:00Z', **fields})


def chain(entries):
    """Return the records of a chain, and its head."""
    records, previous = [], ''
    for number, fields in enumerate(entries, 1):
        records.append(ledger.record(dataclasses.replace(
            fields, number=number, previous_hash=previous)))
        previous = records[-1].hash
    return records, ledger.Head(
        device_uuid='d1', number=len(records), hash=previous)


def changed(record, **fields):
    """Return a record with other fields and the hash of the old ones."""
    return dataclasses.replace(
        record, content=ledger.content({**record.fields, **fields}))


def rehashed(record):
    return dataclasses.replace(record, hash=ledger.digest(record.content))


class RecordTest(base.BaseTestCase):

    def test_content_is_canonical_json_of_all_fields(self):
        record = ledger.record(entry(number=1, reason='h\u00e4 "x"'))
        self.assertEqual(
            '{"actor":null,"address":"a1","assignment_uuid":null,'
            '"attempt":null,"device_uuid":"d1",'
            '"finished_at":"2026-11-23T12:00:00Z","host":"h1",'
            '"instance_uuid":null,"number":1,"policy":"default",'
            '"previous_hash":"","project_id":null,'
            '"reason":"h\\u00e4 \\"x\\"","request":null,"results":[],'
            '"serial":null,"stable_id":"s1","started_at":null,"steps":[],'
            '"variant":null,"verdict":"passed","version":1}', record.content)
        self.assertEqual(
            hashlib.sha256(record.content.encode()).hexdigest(), record.hash)
        self.assertEqual('1', record.marker)

    def test_duration_is_a_number_of_json(self):
        def seconds(value):
            [found] = ledger.record(entry(results=(cleaning.StepResult(
                step='reset', outcome=cleaning.StepOutcome.PASSED, reason='',
                seconds=value),))).fields['results']
            return found['seconds']
        for value, expected in (
                (1, 1.0), (1.23456, 1.235), (float('nan'), 0.0),
                (float('-inf'), 0.0), (float('inf'), 1e9)):
            self.assertEqual(expected, seconds(value))

    @given(_ENTRIES)
    def test_content_is_the_same_after_it_was_parsed(self, fields):
        record = ledger.record(fields)
        self.assertEqual(record.content, ledger.content(
            json.loads(record.content)))
        self.assertTrue(record.content.isascii())


class DefectTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.records, self.head = chain([
            entry(reason=str(number)) for number in range(4)])

    def defect(self, records, head=None):
        return ledger.chain_defect(records, head or self.head)

    def test_chain_as_it_was_written_has_none(self):
        self.assertIsNone(self.defect(self.records))
        self.assertIsNone(ledger.chain_defect([],
                                              ledger.Head(device_uuid='d1')))

    def test_chain_that_became_longer_meanwhile_has_none(self):
        longer, _ = chain([entry(reason=str(number)) for number in range(6)])
        self.assertIsNone(self.defect(longer))

    def test_changed_record_is_named(self):
        self.records[1] = changed(self.records[1], verdict='passed?')
        self.assertRegex(self.defect(self.records),
                         'record 2: its content does not have the hash')

    def test_changed_record_with_a_new_hash_breaks_the_next_one(self):
        self.records[1] = rehashed(changed(self.records[1], reason='x'))
        self.assertRegex(self.defect(self.records),
                         'record 3: it follows a record with the hash')

    def test_last_record_with_a_new_hash_is_not_the_one_that_was_noted(self):
        self.records[3] = rehashed(changed(self.records[3], reason='x'))
        self.assertRegex(self.defect(self.records),
                         'record 4: its hash is .* was noted')

    def test_record_that_was_removed_is_named(self):
        del self.records[1]
        self.assertEqual('record 2: it is missing: the next one has the '
                         'number 3', self.defect(self.records))

    def test_last_records_that_were_removed_are_named(self):
        self.assertEqual(
            'record 3: it is missing, and so are all after it: 4 were '
            'written', self.defect(self.records[:2]))
        self.assertRegex(self.defect([]), 'record 1: it is missing')

    def test_record_of_another_device_or_place_is_named(self):
        for number, fields in ((2, {'device_uuid': 'd2'}), (3, {'number': 9})):
            records = list(self.records)
            records[number - 1] = rehashed(changed(
                records[number - 1], **fields))
            self.assertRegex(self.defect(records),
                             f'record {number}: it was written as record')

    def test_record_beyond_the_end_of_the_chain_is_named(self):
        longer, later = chain([entry(reason=str(number))
                               for number in range(6)])
        self.assertRegex(ledger.chain_defect(longer, self.head, self.head),
                         'record 5: it was forged')
        self.assertIsNone(ledger.chain_defect(longer, self.head, later))

    def test_content_that_is_no_record_is_named(self):
        fields = self.records[0].fields
        for text in (
                'x', '[]', '{}', '1', '"x"', '[' * 100000, 'NaN',
                json.dumps(fields), ledger.content(fields)[:-1] + ',"a":1}',
                *(ledger.content({**fields, **wrong}) for wrong in (
                    {'verdict': 'weird'}, {'verdict': []}, {'results': 1},
                    {'results': [1]}, {'results': [{}]},
                    {'results': [{'step': 'a', 'outcome': 'passed',
                                  'facts': 1}]}))):
            self.records[0] = rehashed(dataclasses.replace(
                self.records[0], content=text))
            with self.subTest(text[:80]):
                self.assertEqual(
                    'record 1: its content is not that of a record',
                    self.defect(self.records))

    def test_chain_that_was_written_anew_is_found_by_the_head_alone(self):
        forged, head = chain([entry(reason='x') for _ in range(4)])
        self.assertRegex(self.defect(forged), 'record 4: .* was noted')
        # Who can write both can write anything: only an export shows it.
        self.assertIsNone(self.defect(forged, head))

    @given(st.lists(_ENTRIES, min_size=1, max_size=4), st.data())
    def test_any_change_of_any_field_is_found(self, entries, data):
        records, head = chain(entries)
        self.assertIsNone(ledger.chain_defect(records, head))
        index = data.draw(st.integers(0, len(records) - 1))
        name = data.draw(st.sampled_from(sorted(records[index].fields)))
        value = data.draw(
            (st.none() | st.text(max_size=8) | st.integers()).filter(
                lambda value: value != records[index].fields[name]))
        forged = changed(records[index], **{name: value})
        for record in (forged, rehashed(forged)):
            self.assertIsNotNone(ledger.chain_defect(
                [*records[:index], record, *records[index + 1:]], head))

    @given(st.lists(_ENTRIES, min_size=1, max_size=4), st.data())
    def test_any_other_set_or_order_is_found(self, entries, data):
        records, head = chain(entries)
        found = data.draw(st.lists(st.sampled_from(records), max_size=4))
        self.assertEqual(
            found == records, ledger.chain_defect(found, head) is None)
