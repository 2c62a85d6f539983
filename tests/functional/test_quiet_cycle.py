# SPDX-License-Identifier: Apache-2.0
"""Iterations without a change make no call.

Calls are counted where they leave the process, not in the plugin's own
wrappers: at the HTTP session, the messaging transport and the SQL cursor.
"""

from __future__ import annotations

import collections
import threading
import time
import traceback
import typing

import fixtures
import sqlalchemy
from keystoneauth1 import session as ks_session
from oslo_messaging import transport as messaging_transport

import gpgpu_plugin
from gpgpu_plugin.conductor import threads
from gpgpu_plugin.conductor import variant_sweep
from tests.fixtures import cloud

OURS = gpgpu_plugin.__path__[0]
CONDUCTORS_OWN = {threads.__file__, threads.__file__,
                  variant_sweep.__file__}
"""Threads of the conductor, which is in the same process here."""


class CallCounter(fixtures.Fixture):
    """Counter of calls by kind: of the whole process, and of the plugin."""

    def _setUp(self) -> None:
        self.all: collections.Counter[str] = collections.Counter()
        self.ours: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        self._wrap(ks_session.Session, 'request', 'http')
        self._wrap(messaging_transport.Transport, '_send', 'rpc')
        self._wrap(messaging_transport.Transport, '_send_notification', 'rpc')
        sqlalchemy.event.listen(
            sqlalchemy.Engine, 'before_cursor_execute', self._on_sql)
        self.addCleanup(
            sqlalchemy.event.remove, sqlalchemy.Engine,
            'before_cursor_execute', self._on_sql)

    def _on_sql(self, *args: object) -> None:
        self._count('sql')

    def _wrap(self, owner: typing.Any, name: str, kind: str) -> None:
        original = getattr(owner, name)

        def counted(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
            self._count(kind)
            return original(*args, **kwargs)
        self.useFixture(fixtures.MonkeyPatch(
            f'{owner.__module__}.{owner.__name__}.{name}', counted))

    def _count(self, kind: str) -> None:
        files = {frame.filename for frame in traceback.extract_stack()}
        ours = CONDUCTORS_OWN.isdisjoint(files) and any(
            file.startswith(OURS) for file in files)
        with self._lock:
            self.all[kind] += 1
            if ours:
                self.ours[kind] += 1


class QuietCycleTest(cloud.GpuCloud):
    """One HGX server, with an instance on it."""

    def _configure(self) -> None:
        super()._configure()
        # Nova's tests switch them on, and a conductor then looks for some.
        self.flags(driver=[], group='oslo_messaging_notifications')

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.flavor(H100=2))
        self.run_periodics('gpu1')
        self.run_once('gpu1')
        self.calls = self.useFixture(CallCounter())

    def _wait_for_background(self) -> None:
        # Work handed to the background has begun by then.
        time.sleep(1)

    def test_iteration_without_change_makes_no_call(self) -> None:
        self.run_once('gpu1')
        self._wait_for_background()
        # Nova's own services beat in the background meanwhile.
        self.assertEqual({}, dict(self.calls.ours))

    def test_periodic_run_of_nova_makes_no_call_of_the_plugin(self) -> None:
        # No difference from what Nova expects is awaited.
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.compute.leftovers.UNEXPECTED_PATIENCE', 0))
        self.run_periodics('gpu1')
        self._wait_for_background()
        self.assertEqual({}, dict(self.calls.ours))
        # Nova itself calls: the counter counts.
        self.assertGreater(self.calls.all['http'], 0)

    def test_change_is_reported_and_pushed(self) -> None:
        free = next(device for device in self.devices('--variant', 'H100')
                    if device['used_by'] is None)
        self.calls.all.clear()
        self.calls.ours.clear()
        self.unplug('gpu1', free['address'])
        self.run_once('gpu1')
        self.wait_inventory(8, 1)
        for kind in ('http', 'rpc', 'sql'):
            self.assertGreater(self.calls.ours[kind], 0, kind)
