# SPDX-License-Identifier: Apache-2.0
"""Tests of the conductor's aggregate, with a cloud in memory."""

import contextlib
import dataclasses
from unittest import mock

import fixtures
import sqlalchemy as sa
from openstack import exceptions as sdk_exceptions

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import isolation
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from tests.unit.conductor import base

METADATA = {'gpgpu:managed': 'true', 'trait:CUSTOM_GPGPU_HOST': 'required'}


class FakeCloud:
    """Aggregates by name.

    :ivar calls: names of the methods that were called
    :ivar error: raised by each of them
    :ivar unknown: hosts that Nova does not have
    :ivar refused: hosts that Nova does not move, by its error
    :ivar placed_nodes: compute nodes that Placement has in the aggregate
    :ivar unplaced: hosts of which Nova does not tell Placement
    :ivar silent: compute nodes of which Placement says nothing

    :param node_uuid: returns the node of a host; default its name
    """

    def __init__(self, node_uuid=str):
        self.node_uuid = node_uuid
        self.placed_nodes = set()
        self.unplaced = set()
        self.silent = set()
        self.aggregates = {}
        self.calls = []
        self.error = None
        self.unknown = set()
        self.refused = {}

    def _called(self, name):
        self.calls.append(name)
        if self.error is not None:
            raise self.error

    def add(self, name, metadata, hosts=()):
        self.aggregates[name] = isolation.HostAggregate(
            id=name, uuid=name, metadata=metadata, hosts=frozenset(hosts))
        self.placed_nodes |= set(map(self.node_uuid, hosts))
        return self.aggregates[name]

    def find(self, name):
        self._called('find')
        return self.aggregates.get(name)

    def create(self, name):
        self._called('create')
        return self.add(name, {})

    def set_metadata(self, aggregate, metadata):
        self._called('set_metadata')
        return self.add(aggregate.id, {**aggregate.metadata, **metadata},
                        aggregate.hosts)

    def _change(self, aggregate, hosts, host):
        if host in self.refused:
            raise self.refused[host]
        if host in self.unknown:
            raise sdk_exceptions.NotFoundException(f'no host {host}')
        self.aggregates[aggregate.id] = dataclasses.replace(
            self.aggregates[aggregate.id], hosts=hosts)
        if host not in self.unplaced:
            self.placed_nodes ^= {self.node_uuid(host)}

    def placed(self, aggregate):
        self._called('placed')
        return frozenset(self.placed_nodes)

    def place(self, aggregate, node_uuid):
        self._called(f'place {node_uuid}')
        if node_uuid in self.silent:
            raise sdk_exceptions.NotFoundException(f'no node {node_uuid}')
        self.placed_nodes.add(node_uuid)

    def add_host(self, aggregate, host):
        self._called(f'add {host}')
        self._change(aggregate, self.hosts | {host}, host)

    def remove_host(self, aggregate, host):
        self._called(f'remove {host}')
        self._change(aggregate, self.hosts - {host}, host)

    @property
    def hosts(self):
        return self.aggregates['gpus'].hosts


class IsolationTestCase(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.conf.set_override(
            'isolation_aggregate', 'gpus', 'gpgpu_conductor')
        self.cloud = FakeCloud(self.node_uuid)
        self.now = 0.0
        self.log = self.useFixture(fixtures.FakeLogger(
            format='%(levelname)s %(message)s'))
        self.isolation = self.keeper()

    def node_uuid(self, name):
        with self.db.reader() as session:
            host = host_db.find(session, name)
        return host.node_uuid if host else name

    def keeper(self):
        return isolation.Isolation(
            self.conf, self.db, self.cloud, lambda: self.now)

    def run_once(self):
        """Return the calls of one comparison, a minute later.

        That which asks Placement for the members is left out.
        """
        self.now += isolation.INTERVAL
        del self.cloud.calls[:]
        self.isolation.run_once()
        return [call for call in self.cloud.calls if call != 'placed']

    def events(self):
        with self.db.reader() as session:
            return [(row.kind, row.host) for row in session.execute(
                sa.select(event_db.TABLE).where(event_db.TABLE.c.kind.in_(
                    ['isolate', 'unisolate'])).order_by(event_db.TABLE.c.id))]


class AlwaysTest(IsolationTestCase):
    """All hosts with GPUs are isolated."""

    def test_aggregate_is_made_and_gets_the_hosts(self):
        self.report_second_host()
        self.assertEqual(
            ['find', 'create', 'set_metadata', 'add h1', 'add h2'],
            self.run_once())
        self.assertEqual({'h1', 'h2'}, self.cloud.hosts)
        self.assertEqual(METADATA, self.cloud.aggregates['gpus'].metadata)
        self.assertEqual([('isolate', 'h1'), ('isolate', 'h2')],
                         self.events())
        self.assertEqual(1, self.log.output.count(
            'INFO isolate on h1; by conductor; aggregate gpus: it has '
            'groups of GPUs'))

    def test_nova_is_asked_again_if_a_host_changed_or_after_minutes(self):
        self.run_once()
        # Whether Placement knows of the move.
        self.assertEqual(['find'], self.run_once())
        self.assertEqual(['find', 'placed'], self.cloud.calls)
        self.run_once()
        self.assertEqual([], self.cloud.calls)
        self.report_second_host()
        self.assertEqual(['find', 'add h2'], self.run_once())
        self.now += isolation.REREAD
        self.cloud.add('gpus', METADATA, ['h1'])
        self.cloud.placed_nodes = {base.NODE}
        self.assertEqual(['find', 'add h2'], self.run_once())

    def test_placement_gets_to_know_what_nova_did_not_tell(self):
        self.report_second_host()
        second = self.node_uuid('h2')
        self.cloud.unplaced = {'h1', 'h2'}
        self.cloud.silent.add(second)
        self.assertEqual(['find', 'create', 'set_metadata', 'add h1',
                          'add h2'], self.run_once())
        place = [f'place {base.NODE}', f'place {second}']
        self.assertEqual(['find', *place], self.run_once())
        # A node that Placement does not have yet is tried again.
        self.assertEqual(['find', place[1]], self.run_once())
        self.assertEqual(1, self.log.output.count('(h2), trying again'))
        self.cloud.silent.clear()
        self.assertEqual(['find', place[1]], self.run_once())
        self.assertEqual({base.NODE, second}, self.cloud.placed_nodes)
        self.assertEqual(1, self.log.output.count(
            'INFO Corrected in Placement that h2 is in aggregate gpus'))
        self.assertEqual(1, self.log.output.count('(h2) are updated again'))
        self.assertEqual(['find'], self.run_once())
        self.run_once()
        self.assertEqual([], self.cloud.calls)

    def test_nothing_moves_while_placement_does_not_answer(self):
        self.cloud.placed = mock.Mock(
            side_effect=sdk_exceptions.SDKException('down'))
        self.assertEqual(['find', 'create', 'set_metadata'], self.run_once())
        self.assertEqual(1, self.log.output.count('again every 60 s: down'))

    def pass_time(self, until):
        """Compare each minute; return the moves."""
        found = []
        while self.now < until:
            found += [(self.now, call) for call in self.run_once()
                      if call != 'find']
        return found

    def test_host_leaves_when_it_has_lacked_groups_for_long(self):
        self.cloud.add('gpus', METADATA, ['h1', 'cpu1'])
        self.assertEqual([(isolation.LEAVE_AFTER, 'remove cpu1')],
                         self.pass_time(isolation.LEAVE_AFTER + 600))
        self.assertEqual([('unisolate', 'cpu1')], self.events())
        self.assertIn('it has had no groups of GPUs for 30 minutes',
                      self.log.output)

    def test_host_whose_groups_come_back_stays(self):
        self.pass_time(3000)
        other = self.keeper()
        for _ in range(3):
            # Longer than LEAVE_AFTER in all, and another one's turn later.
            variant_admin.delete(self.db, 'H100')
            self.assertEqual([], self.pass_time(self.now + 1200))
            variant_admin.create(self.db, self.content.variant)
            self.assertEqual([], self.pass_time(self.now + 60))
            other.run_once()
        variant_admin.delete(self.db, 'H100')
        began_at = self.now
        self.isolation = other
        self.assertEqual([], self.pass_time(began_at + 1500))
        self.assertEqual(['remove h1'], [
            call for _, call in self.pass_time(began_at + 1860)])
        self.assertEqual(['unisolate'], [
            kind for kind, _ in self.events()][1:])

    def test_aggregate_of_somebody_else_is_left_alone(self):
        self.cloud.add('gpus', {'availability_zone': 'west'}, ['cpu1'])
        for _ in range(2):
            self.assertEqual(['find'], self.run_once())
        self.assertEqual({'cpu1'}, self.cloud.hosts)
        self.assertEqual(1, self.log.output.count('gpgpu:managed=true'))

    def test_aggregate_that_is_not_complete_yet_is_taken(self):
        self.cloud.add('gpus', {})
        self.assertEqual(['find', 'set_metadata', 'add h1'], self.run_once())

    def test_metadata_that_is_missing_is_added(self):
        self.cloud.add('gpus', {'gpgpu:managed': 'true', 'a': 'b'}, ['h1'])
        self.assertEqual(['find', 'set_metadata'], self.run_once())
        self.assertEqual({**METADATA, 'a': 'b'},
                         self.cloud.aggregates['gpus'].metadata)

    def test_failure_is_logged_once_and_tried_again(self):
        self.cloud.error = sdk_exceptions.SDKException('down')
        for _ in range(3):
            self.assertEqual(['find'], self.run_once())
        self.assertEqual(1, self.log.output.count(
            'WARNING Cannot update the hosts of aggregate gpus, trying again '
            'every 60 s: down'))
        self.cloud.error = None
        self.run_once()
        self.assertEqual({'h1'}, self.cloud.hosts)
        self.assertEqual(1, self.log.output.count('are updated again'))

    def test_host_that_nova_does_not_have_stops_no_other(self):
        self.report_second_host()
        self.cloud.unknown.add('h1')
        for _ in range(2):
            self.assertIn('add h1', self.run_once())
        self.assertEqual({'h2'}, self.cloud.hosts)
        self.assertEqual([('isolate', 'h2')], self.events())
        self.assertEqual(1, self.log.output.count('no host h1'))

    def test_host_that_nova_refuses_to_move_stops_no_other(self):
        self.report_second_host()
        for error, words in (
                (sdk_exceptions.HttpException('it broke', http_status=500),
                 'it broke'),
                (sdk_exceptions.ForbiddenException(
                    'not yours', http_status=403), 'not yours')):
            self.cloud.add('gpus', METADATA)
            self.cloud.refused['h1'] = error
            self.isolation = self.keeper()
            self.assertEqual(['find', 'add h1', 'add h2'], self.run_once())
            self.assertEqual({'h2'}, self.cloud.hosts)
            self.assertIn(
                'WARNING Cannot update the hosts of aggregate gpus (h1), '
                'trying again every 60 s: isolate: ', self.log.output)
            self.assertIn(words, self.log.output)

    def test_other_conductor_has_the_lock(self):
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.db.migration.hold_lock_if_free',
            lambda engine, number: contextlib.nullcontext(False)))
        self.assertEqual([], self.run_once())

    def test_keeper_that_stops_moves_no_further_host(self):
        self.report_second_host()
        self.cloud.add('gpus', METADATA)
        self.cloud.add_host = lambda aggregate, host: self.isolation.stop()
        self.run_once()
        self.assertEqual([('isolate', 'h1')], self.events())

    def test_cloud_that_nothing_describes_is_refused(self):
        self.conf.set_override('isolation_cloud', 'nowhere', 'gpgpu_conductor')
        exc = self.assertRaises(
            exception.ConfigInvalid, isolation.Isolation, self.conf, self.db)
        self.assertIn('nowhere', str(exc))
