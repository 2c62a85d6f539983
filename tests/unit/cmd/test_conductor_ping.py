# SPDX-License-Identifier: Apache-2.0
"""Tests of ``conductor ping``."""

import os
import socket
import threading
import types

import fixtures

from gpgpu_plugin import version
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import ping
from tests.unit.cmd import base


class ConductorPingTest(base.CommandTestCase):

    variants = ()

    def test_conductor_that_answers_is_listed(self):
        answered = threading.Event()

        class Collector(ping._Collector):
            def pong(self, *args, **kwargs):
                super().pong(*args, **kwargs)
                answered.set()
        # Listens until it has the answer, not until a busy machine had time.
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.ping._Collector', Collector))
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.ping.time',
            types.SimpleNamespace(sleep=answered.wait)))
        [row] = self.json('conductor', 'ping', '--wait', '300')
        self.assertEqual(
            (os.getpid(), version.VERSION, conductor_contract.VERSION),
            (row['PID'], row['Version'], row['RPC Version']))
        self.assertRegex(row['Started At'], r'^20\d\d-.+\+00:00$')

    def test_conductor_of_another_host_is_left_out_on_request(self):
        for host, code in ((socket.gethostname(), 0), ('elsewhere', 1)):
            self.useFixture(fixtures.MonkeyPatch(
                'gpgpu_plugin.rpc.ping.ping',
                lambda *_, host=host, **__: (ping.PingAnswer(
                    host=host, pid=1, version='1', rpc_version='1',
                    started_at=0),)))
            self.assertEqual(0, self.manage('conductor', 'ping').code)
            self.assertEqual(code, self.manage(
                'conductor', 'ping', '--this-host').code, host)

    def test_conductor_that_takes_no_calls_is_listed_and_unhealthy(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.ping.ping', lambda *_, **__: (ping.PingAnswer(
                host=socket.gethostname(), pid=1, version='1',
                rpc_version='1', started_at=0, unfit='its clock is wrong'),)))
        [row] = self.json('conductor', 'ping')
        self.assertEqual('its clock is wrong', row['Takes No Calls'])
        self.assertEqual(
            f'gpgpu-manage: {socket.gethostname()}: its clock is wrong\n',
            self.refused('conductor', 'ping', '--this-host'))

    def test_ping_without_a_conductor_is_an_error(self):
        self.conductor.stop()
        self.assertEqual(
            'gpgpu-manage: No gpgpu-conductor answered ping within 0.1 s; '
            'check that one is running and uses the message broker at '
            'localhost (no transport_url is configured), as this command '
            'does\n',
            self.refused('conductor', 'ping', '--wait', '0.1'))

    def test_malformed_wait_is_refused(self):
        for wait in ('0', '-1', 'nan', '1e9'):
            self.assertIn('expected seconds', self.misused(
                'conductor', 'ping', f'--wait={wait}'))
