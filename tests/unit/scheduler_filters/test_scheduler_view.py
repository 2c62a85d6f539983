# SPDX-License-Identifier: Apache-2.0
"""Tests of the scheduler's view: changes, reasons of refusals."""

import dataclasses
import datetime
import threading
import time

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import scheduling
from gpgpu_plugin.scheduler_filters import scheduler_view
from tests.unit.scheduler_filters import make

REFUSAL = scheduling.FilterRefusal(
    filter='GpuFilter', at=datetime.datetime(2026, 11, 24, 12),
    instance_uuid='i1', project_id='p1', request_id=None,
    reasons={'not_enough_available': 1}, passed=0, detail='h1: none')


def view(*hosts):
    made = scheduler_view.SchedulerView()
    made.update(hosts)
    return made


def free(of, host):
    return of.hosts[host].sent.groups[0].types[0].free


class SchedulerViewTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.view = view(make.groups('h1'), make.groups('h2', free=0b1))

    def test_classes_are_those_of_all_hosts(self):
        self.assertTrue(self.view.has_class(make.RC))
        self.assertFalse(view().has_class(make.RC))

    def test_class_goes_with_its_last_host(self):
        for host, expected in (('h1', True), ('h2', False)):
            self.view.update([make.groups(host, deleted=True, generation=2)])
            self.assertEqual(expected, self.view.has_class(make.RC))

    def test_class_of_a_changed_host_is_counted_once(self):
        changed = view(make.groups('h1'))
        for generation in (2, 3):
            changed.update([make.groups('h1', generation=generation)])
        changed.update([make.groups('h1', deleted=True, generation=4)])
        self.assertFalse(changed.has_class(make.RC))

    def test_change_replaces_one_host(self):
        other = self.view.hosts['h2']
        self.view.update([make.groups('h1', free=0, generation=2)])
        self.assertEqual(0, free(self.view, 'h1'))
        self.assertIs(other, self.view.hosts['h2'])

    def test_older_change_of_a_host_is_dropped(self):
        self.view.update([make.groups('h1', generation=3)])
        for generation in (1, 2):
            self.view.update([
                make.groups('h1', free=0, generation=generation)])
            self.assertEqual(0b1111, free(self.view, 'h1'))

    def test_change_of_the_same_generation_is_applied(self):
        self.view.update([make.groups('h1', free=0)])
        self.assertEqual(0, free(self.view, 'h1'))

    def test_older_deletion_is_dropped(self):
        self.view.update([make.groups('h1', deleted=True, generation=0)])
        self.assertIn('h1', self.view.hosts)

    def test_deletion_of_an_unknown_host_changes_nothing(self):
        self.view.update([make.groups('h9', deleted=True)])
        self.assertEqual({'h1', 'h2'}, set(self.view.hosts))

    def test_later_change_of_a_lower_generation_shows_a_restore(self):
        known = view(make.groups('h1', generation=5, changed_at=5.0))
        for generation, changed_at, expected in (
                (4, 6.0, True), (4, 4.0, False), (6, 6.0, False)):
            self.assertEqual(expected, known.is_restored([make.groups(
                'h1', generation=generation, changed_at=changed_at)]))


    def test_equal_requests_have_one_number(self):
        def kind(count, guest_nodes=None):
            return self.view.kind(request.Request(demands=(request.Demand(
                resource_class=make.RC, count=count),)), guest_nodes)
        self.assertEqual(kind(1), kind(1))
        self.assertEqual(4, len({
            kind(1), kind(2), kind(1, 1), kind(1, 2)}))
        self.useFixture(fixtures.MonkeyPatch(
            f'{scheduler_view.__name__}.MAX_KINDS', 5))
        self.assertIsNotNone(kind(3))
        self.assertIsNone(kind(4))
        self.assertIsNotNone(kind(3))

    def test_offers_are_those_of_all_hosts(self):
        [offer] = self.view.offers
        self.assertEqual((make.RC, 'A', 1), offer)
        for generation, hosts in ((2, 1), (3, 0)):
            self.view.update([make.groups(
                f'h{generation - 1}', deleted=True, generation=generation)])
            self.assertEqual(hosts, self.view.offers.total())
        self.assertEqual({}, self.view.offers)

    def test_last_view_is_known_without_a_call(self):
        cache = scheduler_view.SchedulerViewCache(make.FakeAPI())
        self.assertEqual({}, cache.last.hosts)


class SchedulerViewCacheTest(base.BaseTestCase):

    def cache(self, *answers):
        self.api = make.FakeAPI(*answers)
        return scheduler_view.SchedulerViewCache(self.api)

    def test_changes_are_asked_for_since_the_last_answer(self):
        cache = self.cache(
            make.changes(make.groups('h1', generation=5), make.groups('h2'),
                         since=2.0, anew=True),
            make.changes(make.groups('h1', free=0, generation=4),
                         make.groups('h2', deleted=True), since=4.0))
        cache.refresh()
        view = cache.refresh()
        self.assertEqual([(0, None), (2.0, None)], self.api.asked)
        self.assertEqual({'h1'}, set(view.hosts))
        self.assertEqual(0b1111, free(view, 'h1'))

    def test_versions_are_named_that_changed_since(self):
        deleted = make.groups('h3', changed_at=9.0, deleted=True)
        recent = make.groups('h2', changed_at=2.5)
        cache = self.cache(
            make.changes(make.groups('h1', changed_at=1.0), recent, deleted,
                         since=2.0, anew=True),
            make.changes(since=3.0), make.changes(since=3.0))
        cache.refresh()
        self.assertEqual((), self.api.known)
        cache.refresh()
        self.assertEqual((recent.version, deleted.version), self.api.known)
        cache.refresh()
        self.assertEqual((deleted.version,), self.api.known)

    def test_first_view_is_read_in_pages_and_then_its_changes(self):
        cache = self.cache(
            make.changes(make.groups('h1'), since=2.0, anew=True, marker=7),
            make.changes(make.groups('h2'), since=3.0),
            make.changes(make.groups('h1', generation=2), since=4.0),
            make.changes(since=5.0))
        self.assertEqual({'h1', 'h2'}, set(cache.refresh().hosts))
        cache.refresh()
        # What changed while the pages were read, too.
        self.assertEqual(
            [(0, None), (0, 7), (2.0, None), (4.0, None)], self.api.asked)

    def test_view_without_all_pages_is_not_used(self):
        cache = self.cache(
            make.changes(make.groups('h1'), since=2.0, anew=True, marker=7),
            exception.ConductorUnavailable(method='x', timeout=1),
            exception.ConductorUnavailable(method='x', timeout=1),
            make.changes(make.groups('h2'), since=3.0),
            make.changes(since=4.0))
        for _ in range(2):
            self.assertRaises(exception.ConductorUnavailable, cache.refresh)
        # It goes on from there.
        self.assertEqual({'h1', 'h2'}, set(cache.refresh().hosts))
        self.assertEqual(
            [(0, None), (0, 7), (0, 7), (0, 7), (2.0, None)], self.api.asked)

    def test_view_that_is_read_anew_replaces_all_hosts(self):
        cache = self.cache(
            make.changes(make.groups('h1'), since=9.0, anew=True),
            make.changes(make.groups('h2'), since=3.0, anew=True),
            make.changes(since=4.0))
        cache.refresh()
        self.assertEqual({'h2'}, set(cache.refresh().hosts))
        cache.refresh()
        self.assertEqual([(0, None), (9.0, None), (3.0, None)],
                         self.api.asked)

    def test_database_that_was_restored_is_read_from_the_beginning(self):
        cache = self.cache(
            make.changes(make.groups('h1', generation=5), make.groups('h3'),
                         since=2.0, anew=True),
            make.changes(make.groups('h1', generation=4, changed_at=3.0),
                         since=4.0),
            make.changes(make.groups('h1', generation=4, changed_at=3.0),
                         make.groups('h2'), since=4.0, anew=True))
        cache.refresh()
        view = cache.refresh()
        self.assertEqual({'h1', 'h2'}, set(view.hosts))
        self.assertEqual([(0, None), (2.0, None), (0, None)], self.api.asked)

    def test_view_stays_while_no_conductor_answers(self):
        cache = self.cache(
            make.changes(make.groups('h1'), since=9.0),
            exception.ConductorUnavailable(method='x', timeout=1),
            make.changes(since=9.0))
        cache.refresh()
        self.assertRaises(exception.ConductorUnavailable, cache.refresh)
        self.assertEqual({'h1'}, set(cache.refresh().hosts))
        self.assertEqual(
            [(0, None), (9.0, None), (9.0, None)], self.api.asked)

    def test_refusals_are_sent_until_they_are_recorded(self):
        cache = self.cache(
            make.changes(since=9.0),
            exception.ConductorUnavailable(method='x', timeout=1),
            make.changes(since=9.0), make.changes(since=9.0, recorded=True),
            make.changes(since=9.0))
        cache.refresh()
        cache.refused.add(REFUSAL)
        self.assertRaises(exception.ConductorUnavailable, cache.refresh)
        for _ in range(3):
            cache.refresh()
        # One call for each refresh, as without refusals.
        self.assertEqual([(), *[(REFUSAL,)] * 3, ()], self.api.refusals)


class ChoicesTest(base.BaseTestCase):
    """Choices of other schedulers."""

    SERVER = '11111111-1111-1111-1111-111111111111'

    def setUp(self):
        super().setUp()
        self.now = 100.0
        self.view, self.api = None, None

    def cache(self, *answers):
        self.api = make.FakeAPI(
            make.changes(make.groups('h1'), make.groups('h2'), since=2.0,
                         anew=True), *answers)
        cache = scheduler_view.SchedulerViewCache(
            self.api, lambda: self.now, start=lambda work: work())
        self.view = cache.refresh()
        return cache

    def answer(self, *hosts, scheduler='other', node='h1'):
        return dataclasses.replace(
            make.changes(*hosts, since=2.0),
            choices=(scheduling.SchedulerChoice(
                scheduler=scheduler, node_uuid=node,
                instance_uuid=self.SERVER, request=request.Request()),))

    def pending(self):
        return {node: [choice.instance_uuid for choice in choices]
                for node, choices in self.view.pending.of.items()}

    def test_choice_of_another_scheduler_is_pending(self):
        self.cache(self.answer()).refresh()
        self.assertEqual({'h1': [self.SERVER]}, self.pending())

    def test_choice_that_came_back_is_not_subtracted_twice(self):
        cache = self.cache(make.changes(since=2.0))
        self.view.pending.add('h2', self.SERVER, request.Request())
        [sent] = self.api.chosen_hosts
        self.assertEqual(('h2', self.SERVER),
                         (sent.node_uuid, sent.instance_uuid))
        cache.refresh()
        self.view.pending.confirm(make.groups(
            'h2', instances=('11111111',)))
        self.api.changes.append(self.answer(
            scheduler=sent.scheduler, node='h2'))
        cache.refresh()
        self.assertEqual({}, self.pending())

    def test_choice_that_the_host_shows_already_is_not_pending(self):
        self.cache(self.answer(make.groups(
            'h1', generation=2, instances=('11111111',)))).refresh()
        self.assertEqual({}, self.pending())

    def test_choice_of_an_unknown_host_is_not_pending(self):
        self.cache(self.answer(node='h9')).refresh()
        self.assertEqual({}, self.pending())

    def test_choices_since_the_last_answer_are_asked_for(self):
        cache = self.cache(
            make.changes(since=2.0),
            exception.ConductorUnavailable(method='x', timeout=1),
            make.changes(since=2.0))
        self.now += 3
        cache.refresh()
        self.now += 3
        self.assertRaises(exception.ConductorUnavailable, cache.refresh)
        self.now += 3
        cache.refresh()
        self.assertEqual([60.0, 60.0, 4.0, 7.0], self.api.periods)

    def test_old_choices_go_though_nobody_weighs(self):
        cache = self.cache(self.answer(), make.changes(since=2.0))
        cache.refresh()
        self.view.pending._clock = lambda: time.monotonic() + 61
        cache.refresh()
        self.assertEqual({}, self.pending())


class ReadAgainTest(base.BaseTestCase):
    """Changes that were committed so late that no call found them."""

    def setUp(self):
        super().setUp()
        self.seconds = 1000.0

    def cache(self, *answers):
        self.api = make.FakeAPI(
            make.changes(make.groups('h1'), make.groups('h2'), since=2.0,
                         anew=True), *answers)
        cache = scheduler_view.SchedulerViewCache(
            self.api, lambda: self.seconds)
        cache.refresh()
        return cache

    def refresh_later(self, cache):
        self.seconds += scheduler_view.READ_AGAIN
        return cache.refresh()

    def test_page_after_page_is_read_again(self):
        none = make.changes(since=3.0)
        late = make.groups('h2', free=0, generation=2)
        cache = self.cache(
            none, make.changes(make.groups('h1'), marker=1),
            none, make.changes(late),
            none, make.changes(marker=1))
        self.refresh_later(cache)
        view = self.refresh_later(cache)
        self.assertEqual(0, free(view, 'h2'))
        self.refresh_later(cache)
        self.assertEqual([(0.0, 0), (0.0, 1), (0.0, 0)],
                         self.api.asked[2::2])

    def test_few_decisions_do(self):
        cache = self.cache(*[make.changes(since=3.0)] * 4)
        self.refresh_later(cache)
        for _ in range(2):
            self.seconds += scheduler_view.READ_AGAIN / 3
            cache.refresh()
        self.assertEqual([], self.api.changes)
        self.assertEqual(1, self.api.asked.count((0.0, 0)))

    def test_what_is_older_changes_nothing(self):
        cache = self.cache(
            make.changes(make.groups('h1', generation=9), since=3.0),
            make.changes(make.groups('h1', free=0, generation=8)))
        view = self.refresh_later(cache)
        self.assertEqual(0b1111, free(view, 'h1'))

    def test_decision_does_not_need_it(self):
        cache = self.cache(
            make.changes(make.groups('h1', free=0, generation=2), since=3.0),
            exception.ConductorUnavailable(method='x', timeout=1),
            make.changes(since=3.0))
        view = self.refresh_later(cache)
        self.assertEqual(0, free(view, 'h1'))
        cache.refresh()
        self.assertEqual([], self.api.changes)


class SharedCallTest(base.BaseTestCase):
    """Decisions that wait for the call of another one."""

    COUNT = 5

    def refresh_at_once(self, *answers):
        """Let some callers wait for one; return all views or errors."""
        begun, asked, go_on = (
            threading.Event(), threading.Semaphore(0), threading.Event())
        api = make.FakeAPI(*answers)
        changes_since = api.changes_since

        def slow(*args):
            begun.set()
            go_on.wait(300)
            return changes_since(*args)
        api.changes_since = slow

        def clock():
            asked.release()
            return time.monotonic()
        cache = scheduler_view.SchedulerViewCache(api, clock)
        found = []

        def refresh():
            try:
                found.append(set(cache.refresh().hosts))
            except exception.ConductorUnavailable as exc:
                found.append(exc)
        threads = [threading.Thread(target=refresh)
                   for _ in range(self.COUNT)]
        threads[0].start()
        self.addCleanup(go_on.set)
        self.assertTrue(begun.wait(300))
        for thread in threads[1:]:
            thread.start()
        # The first one has read the clock twice.
        for _ in range(self.COUNT + 1):
            self.assertTrue(asked.acquire(timeout=300))
        go_on.set()
        for thread in threads:
            thread.join(300)
        self.assertEqual([], api.changes)
        return found

    def test_failure_is_shared(self):
        found = self.refresh_at_once(
            exception.ConductorUnavailable(method='x', timeout=1))
        self.assertEqual(
            [exception.ConductorUnavailable] * self.COUNT,
            [type(value) for value in found])

    def test_changes_are_as_of_the_decision_or_later(self):
        # The others asked after the first call began.
        first, *others = self.refresh_at_once(
            make.changes(make.groups('h1'), since=1.0, anew=True),
            make.changes(make.groups('h2'), since=2.0))
        self.assertIn('h1', first)
        self.assertEqual([{'h1', 'h2'}] * (self.COUNT - 1), others)
