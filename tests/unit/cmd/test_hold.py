# SPDX-License-Identifier: Apache-2.0
"""Tests of ``hold``."""

from tests.unit.cmd import base
from tests.unit.conductor import base as machine


class HoldTest(base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.report(machine.EIGHT)

    def add(self, kind, address='0000:00:00.0', reason='why'):
        return self.json('hold', 'add', 'h1', address, '--kind', kind,
                         '--reason', reason)

    def test_holds_are_listed_with_author_and_reason(self):
        self.assertEqual([], self.json('hold', 'list'))
        shown = self.add('disabled')
        self.assertEqual('disabled', shown['Shown State'])
        self.add('quarantined', '0000:01:00.0', 'fan is loud')
        [disabled, quarantined] = self.json('hold', 'list')
        self.assertEqual(
            ('h1', '0000:00:00.0', shown['UUID'], 'disabled', 'why'),
            tuple(disabled[name] for name in (
                'Host', 'Address', 'Device', 'Kind', 'Reason')))
        self.assertTrue(disabled['Actor'])
        self.assertIn('fan is loud', quarantined['Reason'])
        self.assertEqual([quarantined], self.json(
            'hold', 'list', '--kind', 'quarantined', '--host', 'h1'))
        self.assertEqual([quarantined], self.json(
            'hold', 'list', '--marker', str(disabled['ID'])))
        self.assertIn('host h9 does not exist', self.refused(
            'hold', 'list', '--host', 'h9'))

    def test_device_shows_its_holds_until_each_is_removed(self):
        for kind in ('disabled', 'quarantined', 'retired'):
            shown = self.add(kind)
        self.assertEqual('retired', shown['Shown State'])
        self.assertEqual(['disabled', 'quarantined', 'retired'], [
            text.split()[0] for text in shown['Holds']])
        for kind, state in (('retired', 'quarantined'),
                            ('quarantined', 'dirty')):
            self.assertEqual(state, self.json(
                'hold', 'remove', shown['UUID'], '--kind', kind,
            )['Shown State'])
        [text] = self.json('device', 'show', shown['UUID'])['Holds']
        self.assertRegex(text, '^disabled since .* by .*: why$')
        self.json('hold', 'remove', shown['UUID'], '--kind', 'disabled')
        self.assertEqual([], self.json('hold', 'list'))

    def test_hold_that_is_not_there_is_not_removed(self):
        self.add('disabled')
        self.assertIn('it is only held as disabled', self.refused(
            'hold', 'remove', 'h1', '0000:00:00.0', '--kind', 'failed'))
        self.assertIn('quarantined already', self.refused(
            'hold', 'add', 'h1', '0000:00:00.0', '--kind', 'quarantined',
            '--reason', 'x') if self.add('quarantined') else '')

    def test_reason_must_say_something(self):
        for kind in ('disabled', 'quarantined', 'retired'):
            self.assertIn('a text in one line', self.refused(
                'hold', 'add', 'h1', '0000:00:00.0', '--kind', kind,
                '--reason', ' '))
        self.assertEqual([], self.json('hold', 'list'))
