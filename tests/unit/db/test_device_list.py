# SPDX-License-Identifier: Apache-2.0
"""Tests of shown states, filters and pages of devices as the database does."""

import collections
import itertools
import uuid

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import gauges
from gpgpu_plugin.db import hold as hold_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from tests.fixtures import rows
from tests.unit.conductor import base
from tests.unit.db import base as db_base

HOLDS = [*itertools.combinations(device_rules.HoldKind, 0),
         *itertools.combinations(device_rules.HoldKind, 1),
         *itertools.combinations(device_rules.HoldKind, 2)]
FLAGS = list(itertools.product(HOLDS, (True, False), (True, False)))
# A vGPU in each state, and a free one that is quarantined by itself.
CHILDREN = [combination for size in range(3)
            for combination in itertools.combinations(
                (*device_rules.DeviceState, device_rules.QUARANTINED), size)]


class ShownStateTest(base.ConductorTestCase):
    """Devices in all states, with the vGPUs that a GPU may have."""

    functions = ()
    restored = False
    free, never = 'available', 'unknown'

    def setUp(self):
        super().setUp()
        base.hosts.store(self.db, base.scan(base.EIGHT[:1]))
        self.expected, self.rows, self.holds = {}, [], []
        with self.db.writer() as session:
            self.host = host_db.get(session, 'h1')
            if self.restored:
                rows.hold_host(session, 'h1',
                               device_rules.HostHoldKind.RESTORED)
            [self.group] = host_rows.load_one(session, self.host).groups
            for state, flags in itertools.product(
                    device_rules.DeviceState, FLAGS):
                if state is not device_rules.DeviceState.AVAILABLE:
                    self._gpu(state, flags, ())
            for flags, states in itertools.product(FLAGS, CHILDREN):
                self._gpu(device_rules.DeviceState.AVAILABLE, flags, states)
            session.execute(sa.insert(tables.DEVICES), self.rows)
            hold_db.store(session, (), self.holds, clock.utc(session))

    def _gpu(self, state, flags, children):
        holds, present, managed = flags
        name = f'{state} {flags} {", ".join(children)}'
        gpu = self._row(None, state, holds, present, managed, name)
        for child in children:
            is_held = child == device_rules.QUARANTINED
            self._row(gpu, 'available' if is_held else child,
                      [device_rules.HoldKind.FAILED] if is_held else [], True,
                      True)
        # One that is in no group does not count.
        self._row(gpu, device_rules.DeviceState.ASSIGNED, [], True, False)
        self.expected[name] = device_rules.shown_state(
            state, holds=holds, present=present, managed=managed,
            children=[device_rules.own_state(child, holds)
                      for child in children], restored=self.restored)

    def _row(self, parent_id, state, holds, present, managed, name=None):
        # The GPU that the host reported has a lower id.
        device_id = 1000 + len(self.rows)
        unique = str(uuid.uuid4())
        values = vars(db_base.device(
            unique, stable_id=name or unique, host_id=self.host.id,
            group_id=self.group.id if managed else None,
            parent_id=parent_id, state=str(state),
            kind='pci' if parent_id is None else 'mdev', present=present))
        self.rows.append({'id': device_id, **{
            column: value for column, value in values.items()
            if column in tables.DEVICES.c}})
        self.holds += [hold_db.Hold(
            0, device_id, None, str(kind), None, None, None)
            for kind in holds]
        return device_id

    def listed(self, **kwargs):
        with self.db.reader() as session:
            return device_db.listed(session, limit=10000, **kwargs)

    def test_retired_devices_are_left_out_unless_they_are_asked_for(self):
        everything = self.listed(include_retired=True)
        self.assertLessEqual(self.expected.keys(), {
            device.row.stable_id for device in everything})
        self.assertEqual(
            [device.row.id for device in everything
             if device.own_state != 'retired'],
            [device.row.id for device in self.listed()])

    def test_database_shows_the_states_of_the_rule(self):
        found = {device.row.stable_id: device.shown_state
                 for device in self.listed(include_retired=True)}
        self.assertEqual([], [
            (name, state, found[name])
            for name, state in self.expected.items() if found[name] != state])
        self.assertEqual(set(device_rules.SHOWN_STATES) - {self.never},
                         set(self.expected.values()))

    def test_database_filters_by_the_shown_state(self):
        for state in device_rules.SHOWN_STATES:
            self.assertEqual(
                {name for name, shown in self.expected.items()
                 if shown == state},
                {device.row.stable_id for device in self.listed(state=state)}
                & self.expected.keys())

    def test_database_counts_by_the_shown_state(self):
        counts = collections.Counter(self.expected.values())
        del counts['retired']
        counts[self.free] += 1  # The one that the host reported.
        with self.db.reader() as session:
            self.assertEqual(
                {self.host.id: counts},
                device_db.count_by_state(session, [self.host.id, 99]))
            found = collections.Counter()
            for row in gauges.read(session, per_host=True).devices:
                found[row.state] += row.number
        self.assertEqual(counts, found)


class RestoredShownStateTest(ShownStateTest):
    """A host that has not reported since a restore of the database."""

    restored = True
    free, never = 'unknown', 'available'


class PageTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.report_second_host()

    def pages(self, limit, **filters):
        marker = None
        while True:
            with self.statements() as found:
                page = device_admin.list_all(
                    self.db, limit=limit, marker=marker, **filters)
            # BEGIN, the row of the marker, the page, which of its groups have
            # link partitions, holds.
            self.assertLessEqual(len(found), 5)
            yield page
            if not page:
                return
            marker = page[-1].uuid

    def test_pages_together_are_the_list(self):
        everything = device_admin.list_all(self.db)
        self.assertEqual(16, len(everything))
        self.assertEqual(
            sorted(everything, key=lambda info: (info.host, info.stable_id)),
            list(everything))
        for limit in (1, 3, 8, 16):
            found = list(self.pages(limit))
            self.assertEqual(
                list(everything), list(itertools.chain(*found)))
            self.assertEqual({limit}, set(map(len, found[:16 // limit])))

    def test_filters_come_before_pages(self):
        self.boot(3)
        self.assertEqual([2, 1, 0], list(map(len, self.pages(
            2, state='assigned'))))
        self.assertEqual([3, 0], list(map(len, self.pages(3, used_by='i1'))))

    def test_unknown_marker_is_not_found(self):
        self.assertRaises(exception.NotFound, device_admin.list_all,
                          self.db, marker='gone')
