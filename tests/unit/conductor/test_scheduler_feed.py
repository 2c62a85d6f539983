# SPDX-License-Identifier: Apache-2.0
"""Tests of the changes that schedulers receive."""

from unittest import mock

import fixtures
import hypothesis
from hypothesis import strategies as st
from oslotest import base as testcase

from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.scheduler_filters import scheduler_view
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.fixtures import released
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


def read(feed, since=0, known=()):
    """Return the hosts of one page."""
    return scheduling.unpack(feed.changes_since(since, known).packed)


class UnlistedTest(vgpu_base.VGPUTestCase):
    """Tests of vGPU types that were never enabled."""

    def test_type_that_is_not_listed_is_not_reported_to_schedulers(self):
        hosts.store(self.db, base.scan(
            (base.function(0, device='25b6', driver='nvidia',
                           vgpu_mechanism=vgpu.VGPUMechanism.MDEV,
                           vgpu_types=vgpu_base.TYPES),), host='h2',
            node_uuid='22222222-2222-2222-2222-222222222222'))
        variant_admin.create(self.db, admin.VariantInfo(
            name='A2', vendor='10de', device='25b6'))
        [info] = [host for host in read(scheduler_feed.SchedulerFeed(
            self.db)) if host.host == 'h2']
        self.assertEqual(['CUSTOM_GPU_A2'], [
            offered.resource_class for group in info.groups
            for offered in group.types])


class VGPUTest(vgpu_base.VGPUTestCase):
    """Tests of vGPU types that are enabled."""

    def test_units_of_an_empty_gpu_are_reported(self):
        [info] = read(scheduler_feed.SchedulerFeed(self.db))
        most = {offered.resource_class: offered.most
                for group in info.groups for offered in group.types}
        self.assertEqual(1, most['CUSTOM_GPU_T4'])
        self.assertEqual(4, most['CUSTOM_VGPU_T4_T4_4Q'])


class FeedTestCase(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.feed = scheduler_feed.SchedulerFeed(self.db)


class ChangesTest(FeedTestCase):

    def test_everything_then_what_changed_then_nothing(self):
        hosts.store(self.db, base.scan(
            (), host='h2', node_uuid='22222222-2222-2222-2222-222222222222'))
        changes = self.feed.changes_since(0)
        self.assertTrue(changes.anew)
        self.assertIsNone(changes.marker)
        first = scheduling.unpack(changes.packed)
        self.assertEqual(['h1', 'h2'], [host.host for host in first])
        known = [host.version for host in first]
        self.assertEqual((), read(self.feed, changes.since, known))
        # A reader that forgot its versions gets them again.
        self.assertEqual(first, read(self.feed, changes.since))
        self.claim(2)
        [host] = read(self.feed, changes.since, known)
        self.assertEqual(6, host.groups[0].types[0].free.bit_count())
        self.assertEqual({'available': 6, 'provisioning': 2},
                         host.groups[0].states)

    def test_instances_with_devices_are_named(self):
        claim = self.claim(2)
        [host] = read(self.feed)
        self.assertEqual(
            (scheduling.short_id(claim.assignments[0].instance_uuid),),
            host.instances)
        releases.release(self.db, base.uuids(claim))
        [host] = read(self.feed)
        self.assertEqual((), host.instances)

    def test_each_step_of_an_assignments_life_is_a_change(self):
        since = self.feed.changes_since(0).since
        versions = [host.version for host in read(self.feed)]

        def check_changed(state):
            [host] = read(self.feed, since, versions)
            self.assertGreater(
                host.version.generation, versions[-1].generation)
            versions.append(host.version)
            self.assertEqual(
                {'available': 7, state: 1} if state != 'available'
                else {'available': 8}, host.groups[0].states)
        uuids = base.uuids(self.claim(1))
        check_changed('provisioning')
        claims.activate(self.db, uuids)
        check_changed('assigned')
        releases.release(self.db, uuids)
        check_changed('dirty')
        for passed, state in ((False, 'quarantined'), (True, 'available')):
            [task] = cleaning.tasks(self.db, 'h1')
            cleaning.started(
                self.db, task.device_uuid, task.token, task.token)
            check_changed('cleaning')
            cleaning.finished(
                self.db, task.device_uuid, task.token, task.steps,
                cleaned.results(task.steps) if passed
                else cleaned.failed('looked at'))
            check_changed(state)
            if not passed:
                released.release(self.db, task.device_uuid, 'op@c1')
                check_changed('dirty')

    def test_deleted_host_is_reported_to_those_who_may_know_it(self):
        since = self.feed.changes_since(0).since
        host_admin.delete(self.db, 'h1')
        [host] = read(self.feed, since)
        self.assertTrue(host.deleted)
        self.assertEqual((), read(self.feed))

    def test_since_in_the_future_is_answered_with_all_hosts(self):
        changes = self.feed.changes_since(
            self.feed.changes_since(0).since + 1e6, marker=77)
        self.assertTrue(changes.anew)
        self.assertEqual(1, len(scheduling.unpack(changes.packed)))


class PageTest(FeedTestCase):

    functions = ()

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.scheduler_feed._PAGE', 2))
        for number in range(1, 6):
            hosts.store(self.db, base.scan(
                (), host=f'h{number}', node_uuid=f'u{number}'))

    def pages(self, since=0, known=()):
        marker, found = None, []
        while True:
            changes = self.feed.changes_since(since, known, marker)
            self.assertEqual(not since and marker is None, changes.anew)
            found.append([
                host.host for host in scheduling.unpack(changes.packed)])
            marker = changes.marker
            if marker is None:
                return found

    def test_first_view_comes_in_pages(self):
        self.assertEqual([['h1', 'h2'], ['h3', 'h4'], ['h5']], self.pages())

    def test_last_page_may_be_full(self):
        host_admin.delete(self.db, 'h3')
        self.assertEqual([['h1', 'h2'], ['h4', 'h5']], self.pages())

    def test_changes_of_many_hosts_come_in_pages(self):
        changes = self.feed.changes_since(0)
        [known, _] = scheduling.unpack(changes.packed)
        self.assertEqual([['h2', 'h3'], ['h4', 'h5']],
                         self.pages(changes.since, [known.version]))


class StatementsTest(FeedTestCase):

    def count(self, since, known):
        with self.statements() as statements:
            self.feed.changes_since(since, known)
        return len([statement for statement in statements
                    if statement != 'BEGIN'])

    def test_statements_of_a_call(self):
        changes = self.feed.changes_since(0)
        known = [host.version for host in scheduling.unpack(changes.packed)]
        # The time, and which hosts changed.
        self.assertEqual(2, self.count(changes.since, known))
        self.claim(1)
        # The host, its groups, and its devices.
        self.assertEqual(5, self.count(changes.since, known))
        # What was built is kept.
        self.assertEqual(2, self.count(changes.since, known))


class SharedBuildTest(FeedTestCase):

    def setUp(self):
        super().setUp()
        self.built = []
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.conductor.scheduler_feed._read', self.note))

    def note(self, session, ids, build=scheduler_feed._read):
        self.built.append(ids)
        return build(session, ids)

    def test_host_is_computed_once_for_each_change(self):
        first = read(self.feed)
        self.assertEqual(first, read(self.feed))
        self.assertEqual([[1]], self.built)
        self.claim(1)
        self.assertNotEqual(first, read(self.feed))
        self.assertEqual([[1], [1]], self.built)

    def test_call_gets_what_its_caller_does_not_know(self):
        self.report_second_host()
        changes = self.feed.changes_since(0)
        [first, second] = scheduling.unpack(changes.packed)
        for since, known, marker, names, anew in (
                (changes.since, (first.version, second.version), None, [],
                 False),
                (changes.since, (first.version,), None, ['h2'], False),
                (changes.since, (), None, ['h1', 'h2'], False),
                (0, (), first.version.id, ['h2'], False),
                (changes.since + 1e6, (), None, ['h1', 'h2'], True)):
            answer = self.feed.changes_since(since, known, marker)
            self.assertEqual(names, [
                host.host for host in scheduling.unpack(answer.packed)])
            self.assertEqual(anew, answer.anew)

    def test_kept_hosts_are_limited(self):
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.scheduler_feed._MAX_KEPT', 1))
        self.report_second_host()
        for _ in range(2):
            self.assertEqual(2, len(read(self.feed)))
        self.assertEqual([[1, 2], [1]], self.built)


class TopologyTest(vgpu_base.VGPUTestCase):

    def test_gpu_below_no_switch_is_named_while_it_is_free(self):
        feed = scheduler_feed.SchedulerFeed(self.db)
        [host] = read(feed)
        self.assertEqual(((), (1, 2)), (
            host.groups[0].switches, host.groups[0].alone))
        self.ask(whole=1)
        [host] = read(feed)
        self.assertEqual((2,), host.groups[0].alone)


class Table:
    """Hosts in memory, with transactions that commit late.

    :ivar committed: version by host, as readers see it
    :ivar open: by host, the version that a transaction will commit
    """

    def __init__(self):
        self.time = 1e9
        self.committed = {}
        self.open = {}

    def pass_time(self, seconds):
        self.time += seconds
        for host, version in list(self.open.items()):
            if self.time - version.changed_at >= REAL_WINDOW:
                # Rolled back.
                del self.open[host]

    def write(self, host):
        """Write to a host, if no other transaction has it locked."""
        if host not in self.open:
            self.open[host] = scheduling.HostVersion(
                host, self.generation(host) + 1, self.time)

    def generation(self, host):
        return self.committed[host].generation if (
            host in self.committed) else 0

    def commit(self, host):
        if host in self.open:
            self.committed[host] = self.open.pop(host)

    def changed_since(self, _session, at):
        return [version for _, version in sorted(self.committed.items())
                if version.changed_at >= at]

    def live_after(self, _session, host, limit):
        return [version for _, version in sorted(self.committed.items())
                if version.id > host][:limit]

    def masks(self, _session, ids):
        return [scheduling.HostMasks(
            host=f'h{host}', node_uuid=f'u{host}',
            version=self.committed[host]) for host in ids]


REAL_WINDOW = scheduler_feed.WINDOW

HOSTS = st.integers(1, 4)
STEPS = st.lists(st.one_of(
    st.tuples(st.sampled_from(['write', 'commit']), HOSTS),
    st.tuples(st.just('pass_time'), st.sampled_from([1, 20, 59])),
    st.tuples(st.sampled_from(['page', 'read']), st.none())), max_size=40)


class LateCommitTest(testcase.BaseTestCase):
    """Transactions commit in any order, and readers read in between."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.scheduler_feed._PAGE', 2))

    def run_steps(self, steps):
        table = Table()
        feed = scheduler_feed.SchedulerFeed(mock.MagicMock())
        api = mock.Mock()
        api.changes_since = lambda _, since, known, marker, *_more: (
            feed.changes_since(since, known, marker))
        cache = scheduler_view.SchedulerViewCache(api)
        with mock.patch(
                'gpgpu_plugin.db.clock.epoch', lambda _: table.time,
                ), mock.patch.multiple(
                'gpgpu_plugin.db.host', changed_since=table.changed_since,
                live_after=table.live_after), mock.patch.object(
                    scheduler_feed, '_read', table.masks):
            for name, argument in (*steps, ('read', None)):
                if name == 'page':
                    # A call whose followers fail.
                    cache._fetch()
                elif name == 'read':
                    self.assertEqual(table.committed, {
                        host.sent.version.id: host.sent.version
                        for host in cache.refresh().hosts.values()})
                else:
                    getattr(table, name)(argument)

    @hypothesis.settings(max_examples=300, deadline=None)
    @hypothesis.given(STEPS)
    def test_reader_sees_everything_that_was_committed(self, steps):
        self.run_steps(steps)

    LATE = (('write', 1), ('pass_time', 20), ('read', None), ('commit', 1))

    def test_change_that_commits_late_is_seen(self):
        self.run_steps(self.LATE)

    def test_without_window_a_late_change_is_skipped(self):
        # What the other tests pass by is really tested.
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.scheduler_feed.WINDOW', 0))
        first = (('write', 2), ('commit', 2), ('read', None))
        self.assertRaises(
            testcase.testtools.matchers.MismatchError, self.run_steps,
            (*first, *self.LATE))
