# SPDX-License-Identifier: Apache-2.0
"""Tests of how long a connection of PostgreSQL may be silent."""

import socket
import types

from oslotest import base

from gpgpu_plugin.db import api

_OK, _READ, _WRITE = range(3)
_SETUP, _READY, _BEGIN = range(3)


class OperationalError(Exception):
    """The driver's error."""


_DRIVER = types.SimpleNamespace(
    OperationalError=OperationalError,
    extensions=types.SimpleNamespace(
        POLL_OK=_OK, POLL_READ=_READ, POLL_WRITE=_WRITE,
        STATUS_SETUP=_SETUP, STATUS_READY=_READY, STATUS_BEGIN=_BEGIN))


class SilenceTest(base.BaseTestCase):

    def connection(self, status, *states, **seconds):
        """Return a connection that waits for one thing after the other.

        :param seconds: fields of its patience that are not 600
        """
        near, self.server = socket.socketpair()
        self.addCleanup(near.close)
        self.addCleanup(self.server.close)
        return types.SimpleNamespace(
            status=status, poll=iter((*states, _OK)).__next__,
            fileno=near.fileno, patience=api.TCPTimeouts(**{
                'connect': 600, 'idle': 600, 'statement': 600, **seconds}))

    def test_connection_that_is_silent_fails_after_its_limit(self):
        for status, limit in ((_SETUP, 'connect'), (_READY, 'idle'),
                              (_BEGIN, 'statement')):
            silent = self.connection(status, _READ, **{limit: 0.01})
            exc = self.assertRaises(
                OperationalError, api._wait, _DRIVER, silent)
            self.assertIn('did not answer within 0.01 s', str(exc))

    def test_connection_that_answers_goes_on(self):
        answers = self.connection(_BEGIN, _WRITE, _READ)
        self.server.sendall(b'x')
        api._wait(_DRIVER, answers)

    def test_connection_of_others_has_no_limit(self):
        self.assertIsNone(api._seconds(
            _DRIVER.extensions, types.SimpleNamespace(status=_BEGIN)))
