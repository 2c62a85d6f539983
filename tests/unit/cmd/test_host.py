# SPDX-License-Identifier: Apache-2.0
"""Tests of ``host``."""

import functools
import json
import threading
import uuid

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin import version
from gpgpu_plugin.compute import service
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device
from gpgpu_plugin.domain import host
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import hosts
from tests.fixtures import rows
from tests.unit.cmd import base
from tests.unit.conductor import base as machine


class NewHostTest(base.CommandTestCase):

    cleaned_before = False

    def test_list_and_show_say_how_far_the_host_is(self):
        [row] = self.json('host', 'list')
        self.assertEqual('0 of 8 cleaned', row['Cleaned'])
        self.assertEqual('0 of 8 cleaned',
                         self.json('host', 'show', 'h1')['Cleaned'])


class HostTest(base.CommandTestCase):

    def test_list_and_show_have_devices_and_problems(self):
        [row] = self.json('host', 'list')
        self.assertEqual(
            ('h1', 'h1', machine.NODE, {'available': 8}),
            (row['Host'], row['Node'], row['Node UUID'], row['Devices']))
        self.assertIsNone(row['Cleaned'])
        self.report(problems=('0000:07:00.0: config cannot be read',))
        shown = self.json('host', 'show', 'h1')
        self.assertEqual(['0000:07:00.0: config cannot be read'],
                         shown['Problems'])

    def test_show_names_the_session(self):
        shown = self.json('host', 'show', 'h1')
        self.assertEqual((1, []), (shown['Session'], shown['Holds']))
        self.assertRegex(shown['Heard At'], r'^\d{4}-.*Z$')

    def test_list_says_when_a_host_reports_after_a_restore(self):
        self.assertEqual('', self.manage('host', 'list').err)
        sessions.mark_restored(self.conductor.db)
        result = self.manage('host', 'list', '-f', 'json')
        [row] = json.loads(result.out)
        self.assertEqual(('restored', {'unknown': 8}),
                         (row['Host State'], row['Devices']))
        self.assertIn('within 10 min of its last call', result.err)

    def test_list_and_show_have_the_version(self):
        for row in (*self.json('host', 'list'),
                    self.json('host', 'show', 'h1')):
            self.assertEqual(version.VERSION, row['Version'])

    def test_drain_lists_what_is_left_until_the_host_is_empty(self):
        # No nova-compute answers whether the device is used.
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.compute_api.USAGE_TIMEOUT', 0.2))
        [assignment] = self.claim()
        result = self.manage('host', 'drain', 'h1', '-f', 'json')
        self.assertEqual(0, result.code, result.err)
        [left] = json.loads(result.out)
        self.assertEqual(
            (base.INSTANCE, assignment.uuid, 'assigned'),
            (left['Instance UUID'], left['UUID'], left['State']))
        self.assertIn('left: 1 assignment of 1 instance', result.err)
        releases.release(self.conductor.db, [assignment.uuid])
        self.assertIn('left: 1 device not clean yet',
                      self.manage('host', 'drain', 'h1').err)
        self.assertEqual([True], [
            row['Draining'] for row in self.json('host', 'list')])

    def test_drain_counts_quarantined_devices_separately(self):
        with self.conductor.db.writer() as session:
            device_id = session.scalar(sa.select(tables.DEVICES.c.id).where(
                tables.DEVICES.c.address == '0000:00:00.0'))
            rows.hold(session, device_id, device.HoldKind.FAILED, 'it failed')
        self.assertIn(
            'none waits for cleaning; 1 device quarantined, see '
            '"gpgpu-manage device list --host h1 --state quarantined"',
            self.manage('host', 'drain', 'h1').err)

    def test_undrain_offers_the_devices_again(self):
        self.assertIn('no instance has a device of it',
                      self.manage('host', 'drain', 'h1').err)
        self.assertRaises(exception.ClaimDenied, self.claim)
        self.assertFalse(self.json('host', 'undrain', 'h1')['Draining'])
        self.claim()

    def test_drain_of_an_unknown_host_is_refused(self):
        for verb in ('drain', 'undrain'):
            self.assertIn('host h9 does not exist',
                          self.refused('host', verb, 'h9'))

    def test_takeover_lets_another_machine_begin(self):
        identity = host.MachineIdentity(machine_id='other')
        self.assertRaises(
            exception.Fenced, hosts.begin, self.conductor.db, 'h1',
            machine.NODE, start_uuid='s2', expected=1, identity=identity)
        self.done('host', 'takeover', 'h1')
        self.assertEqual(2, hosts.begin(
            self.conductor.db, 'h1', machine.NODE, start_uuid='s2',
            expected=1, identity=identity).number)

    def test_takeover_of_an_unknown_host_is_refused(self):
        self.assertIn('host h9 does not exist',
                      self.refused('host', 'takeover', 'h9'))

    def test_delete_of_a_host_that_nobody_serves_removes_it(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.compute_api.PING_TIMEOUT', 0.2))
        result = self.manage('host', 'delete', 'h1')
        self.assertEqual(0, result.code, result.err)
        self.assertIn('gpgpu-manage key revoke host h1', result.err)
        self.assertEqual([], self.json('host', 'list'))

    def serve(self, name):
        """Let a host report, and answer as its nova-compute.

        :param name: of this test alone: the in-process transport keeps what
            other tests sent
        :returns: is set when the host was refreshed to look
        """
        # A busy machine answers late.
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.compute_api.PING_TIMEOUT', 60))
        self.report(host=name, node_uuid=str(uuid.uuid4()))
        refreshed = threading.Event()
        server = rpc_transport.server(
            rpc_transport.get_transport(self.conf),
            rpc_transport.compute_topic(self.conf),
            name,
            [service.ComputeManager(
                refreshed.set, refreshed.set, lambda assignments: (),
                lambda repairs: (), functools.partial(
                    self.api.answer, self.context, name))],
        )
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)
        return refreshed

    def hosts(self):
        return [row['Host'] for row in self.json('host', 'list')]

    def test_delete_of_a_host_whose_nova_compute_answers_is_refused(self):
        refreshed = self.serve('h-refused')
        err = self.refused('host', 'delete', 'h-refused')
        self.assertIn('host h-refused: its nova-compute is running', err)
        self.assertIn('stop nova-compute', err)
        self.assertIn('--force', err)
        self.assertEqual(['h-refused', 'h1'], self.hosts())
        self.assertFalse(refreshed.is_set())

    def test_delete_by_force_refreshes_the_host(self):
        refreshed = self.serve('h-forced')
        self.assertEqual(0, self.manage(
            'host', 'delete', 'h-forced', '--force').code)
        self.assertEqual(['h1'], self.hosts())
        self.assertTrue(refreshed.wait(60))

    def test_delete_by_force_while_in_use_is_refused(self):
        self.claim()
        self.assertIn(f'instance {base.INSTANCE} has a device',
                      self.refused('host', 'delete', 'h1', '--force'))
        self.assertEqual(1, len(self.json('host', 'list')))

    def test_unknown_host_is_not_found(self):
        for verb in ('show', 'delete'):
            self.assertEqual('gpgpu-manage: host h9 does not exist; see '
                             '"gpgpu-manage host list"\n',
                             self.refused('host', verb, 'h9'))

    def test_delete_while_in_use_is_refused(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.compute_api.PING_TIMEOUT', 0.2))
        self.claim()
        err = self.refused('host', 'delete', 'h1')
        self.assertIn(f'instance {base.INSTANCE} has a device', err)
        self.assertEqual(1, len(self.json('host', 'list')))
