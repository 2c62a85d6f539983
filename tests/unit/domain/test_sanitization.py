# SPDX-License-Identifier: Apache-2.0
"""Tests of the export for NVIDIA's check SEC21-05."""

import dataclasses

from oslotest import base

from gpgpu_plugin.domain import ledger
from tests.fixtures import cleaned
from tests.unit.domain import test_ledger

# The fields that the check's own description lists.
FIELDS = {
    'machine_id': str, 'status': str, 'available': bool, 'in_use': bool,
    'has_gpu': bool, 'served_tenant': bool, 'sanitized': bool,
    'stale_tenant_binding': bool, 'vendor': str, 'product_name': str,
    'bios_version': str, 'transitions': list}


def entry(verdict='passed', tenant='t1', steps=('reset', 'canary'), **fields):
    return test_ledger.entry(
        verdict=ledger.Verdict(verdict), assignment_uuid=tenant,
        results=cleaned.results(steps), **fields)


def export(*entries, shown_state='available', was_cleaned=True, **present):
    records, head = test_ledger.chain(entries)
    return ledger.export_sanitization(
        ledger.Head(device_uuid=head.device_uuid, number=head.number,
                    hash=head.hash, was_cleaned=was_cleaned),
        records, ledger.Present(shown_state=shown_state, **present))


def machine(*entries, **kwargs):
    [found] = export(*entries, **kwargs)['machines']
    return found


def passes(found):
    """Return what the check decides about a machine, by its description.

    A machine passes if it never served a tenant, or if it is sanitized and not
    bound to the last tenant.
    """
    return not found['served_tenant'] or (
        found['sanitized'] and not found['stale_tenant_binding'])


class ExportTest(base.BaseTestCase):

    def test_fields_are_those_of_the_check(self):
        found = export(entry(), host='h1', address='a1', vendor='10de',
                       variant='H100')
        self.assertEqual(
            (True, 'openstack', '', 1, ''),
            (found['success'], found['platform'], found['site_id'],
             found['machines_checked'], found['error']))
        [of_device] = found['machines']
        self.assertEqual({}, {
            name: of_device[name] for name, kind in FIELDS.items()
            if not isinstance(of_device[name], kind)})
        self.assertEqual(
            ('d1', 'available', True, False, True, '10de', 'H100'),
            tuple(of_device[name] for name in (
                'machine_id', 'status', 'available', 'in_use', 'has_gpu',
                'vendor', 'product_name')))

    def test_history_that_was_changed_is_no_success(self):
        records, head = test_ledger.chain([entry(), entry()])
        found = ledger.export_sanitization(
            head, records[:1], ledger.Present())
        self.assertIs(False, found['success'])
        self.assertIn('record 2: it is missing', found['error'])
        self.assertEqual(([], 0), (
            found['machines'], found['machines_checked']))

    def test_record_beyond_the_end_is_no_success(self):
        records, head = test_ledger.chain([entry()])
        found = ledger.export_sanitization(
            head, records, ledger.Present(),
            ledger.Head(device_uuid='d1'))
        self.assertIn('record 1: it was forged', found['error'])

    def test_passed_cleaning_after_each_tenant_is_sanitized(self):
        found = machine(
            entry(), entry('failed', 't2'), entry('released', 't2', ()),
            entry('interrupted', 't2', ()), entry('passed', 't2'))
        self.assertEqual(
            ['in_use', 'sanitizing', 'available', 'in_use', 'sanitizing',
             'error', 'maintenance', 'sanitizing', 'available'],
            found['transitions'])
        self.assertTrue(passes(found))

    def test_device_that_never_had_a_tenant_passes(self):
        found = machine(was_cleaned=False)
        self.assertEqual((False, ['available']), (
            found['served_tenant'], found['transitions']))
        self.assertTrue(passes(found))

    def test_first_cleaning_is_of_no_tenant(self):
        first = entry(tenant=None, steps=('reset', 'settings'))
        found = machine(first)
        self.assertEqual((False, True, ['sanitizing', 'available']), (
            found['served_tenant'], found['sanitized'],
            found['transitions']))
        found = machine(first, entry())
        self.assertEqual((True, True), (
            found['served_tenant'], found['sanitized']))
        self.assertFalse(machine(
            first, entry(steps=('reset', 'settings')))['sanitized'])

    def test_cleaning_that_proves_nothing_about_memory_fails(self):
        for steps in (('reset', 'settings'), ('flr', 'settings'),
                      ('reset', 'knobs', 'settings')):
            found = machine(entry(steps=steps))
            self.assertEqual((True, False), (
                found['served_tenant'], found['sanitized']))
            self.assertFalse(passes(found))
        for step in ('scrub', 'memory-clear', 'canary', 'program'):
            self.assertTrue(passes(machine(entry(steps=('reset', step)))))
        for step in ('host-driver', 'acme-scrub'):
            self.assertFalse(passes(machine(entry(steps=('reset', step)))))

    def test_step_of_a_third_party_says_that_it_is_about_memory(self):
        def found(step, **facts):
            [result] = cleaned.results([step])
            return passes(machine(dataclasses.replace(
                entry(), results=(dataclasses.replace(
                    result, facts=facts),))))
        self.assertTrue(found('acme-scrub', memory=1))
        self.assertFalse(found('acme-scrub', memory=0))
        self.assertFalse(found('reset', memory=1))

    def test_device_that_is_offered_without_a_passed_cleaning_fails(self):
        for state in ('available', 'assigned'):
            self.assertFalse(passes(machine(
                entry(), entry('failed', 't2'), shown_state=state)))
            # Cleaned before there was a ledger.
            self.assertFalse(passes(machine(shown_state=state)))
        self.assertFalse(passes(machine(
            entry('failed'), entry('passed', 't2'))))

    def test_device_whose_last_cleaning_failed_is_not_sanitized(self):
        for state, status in (
                ('dirty', 'sanitizing'), ('cleaning', 'sanitizing'),
                ('quarantined', 'error'), ('missing', 'maintenance'),
                (None, 'decommissioned')):
            found = machine(entry('failed'), shown_state=state)
            self.assertEqual((status, False, status == 'sanitizing'), (
                found['status'], found['available'], found['sanitized']))

    def test_first_tenant_that_is_there_now(self):
        found = machine(shown_state='assigned', was_cleaned=False,
                        in_use=True)
        self.assertEqual((True, True, True, ['in_use']), (
            found['in_use'], found['served_tenant'], found['sanitized'],
            found['transitions']))

    def test_available_device_that_somebody_has_fails(self):
        found = machine(entry(), in_use=True)
        self.assertEqual((False, True), (
            found['available'], found['stale_tenant_binding']))
        self.assertFalse(passes(found))

    def test_last_transitions_are_listed(self):
        found = machine(*(entry(tenant=f't{n}') for n in range(9)))
        self.assertEqual(20, len(found['transitions']))
        self.assertEqual('available', found['transitions'][-1])
