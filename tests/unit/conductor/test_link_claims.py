# SPDX-License-Identifier: Apache-2.0
"""Tests of claims of link partitions."""

import collections
import concurrent.futures
import json
import random
import threading

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_admin
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import history as history_obj
from gpgpu_plugin.scheduler_filters import scheduler_view
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.domain.allocation import base as domain_base

LATTICE = [sorted(part) for part in domain_base.lattice('01234567')]
PARTITIONS = {frozenset(f'0000:0{name}:00.0' for name in part)
              for part in LATTICE}
LINKED = request.GPUTopology.LINKED
CLAIMS = 200


def table(**fields):
    return json.dumps({
        'named_by': 'order', 'partitions': LATTICE, **fields})


class LinkCase(base.ConductorTestCase):
    """Base class of tests of a host whose eight GPUs have a lattice."""

    fabric = True

    @property
    def content(self):
        return base.Content(self.functions, admin.VariantInfo(
            name='H100', vendor='10de', device='2330',
            link_partitions=table(fabric=self.fabric)))

    def take(self, count, instance, **kwargs):
        """Claim, and return the addresses."""
        return frozenset(
            assignment.address for assignment in self.claim(
                count, instance, **kwargs).assignments)

    def denied(self, count, instance='denied', **kwargs):
        return self.assertRaises(
            exception.ClaimDenied, self.claim, count, instance, **kwargs)

    def group(self):
        [group] = group_admin.list_all(self.db, 'h1')
        return group

    def masks(self, host='h1'):
        """Return a host as schedulers see it."""
        with self.db.reader() as session:
            row = host_db.get(session, host)
            return scheduler_view.SchedulerHost(scheduler_feed.host_masks(
                row, [group.value for group in capacity.load(
                    session, [row])[row.id]]))


class LinkClaimTest(LinkCase):

    def test_claim_takes_one_partition_and_keeps_the_largest(self):
        first = self.take(1, 'i1')
        second = self.take(1, 'i2', topology=LINKED)
        self.assertIn(first | second, PARTITIONS)
        pair = self.take(2, 'i3', topology=LINKED)
        self.assertIn(first | second | pair, PARTITIONS)
        self.assertIn(self.take(4, 'i4'), PARTITIONS)

    def test_gpus_that_are_no_partition_are_denied_with_numbers(self):
        self.take(4, 'i1')
        self.take(2, 'i2')
        self.take(1, 'i3')
        exc = self.denied(3)
        self.assertEqual('not_enough_available', exc.reason)
        self.end('i2')
        exc = self.denied(3)
        self.assertEqual('link_partition', exc.reason)
        self.assertIn('8 of 1, 4 of 2, 2 of 4, 1 of 8', str(exc))
        self.assertEqual('topology_linked', self.denied(
            3, topology=LINKED).reason)

    def end(self, instance):
        """Release and clean what an instance has."""
        releases.release(self.db, [
            assignment.uuid for assignment in claims.of_instance(
                self.db, instance)])
        self.clean_all()

    def test_missing_gpu_breaks_its_partitions_alone(self):
        hosts.store(self.db, base.scan(base.EIGHT[1:]))
        self.assertIn(self.take(4, 'i1'), PARTITIONS)
        self.assertEqual('link_partition', self.denied(3).reason)
        self.assertEqual(('4', '5', '6', '7'), self.group().free_partitions)
        self.assertIn(self.take(2, 'i2'), PARTITIONS)

    def test_host_with_fewer_gpus_than_the_table_offers_none(self):
        hosts.store(self.db, base.scan(
            base.EIGHT[:4], 'h2', base.node_uuid('h2')))
        exc = self.denied(1, host='h2')
        self.assertEqual('link_partition', exc.reason)
        self.assertIn('names 8 GPUs by their order, but the group has 4',
                      str(exc))
        [group] = group_admin.list_all(self.db, 'h2')
        self.assertEqual(({}, 'variant'), (
            group.link_partitions, group.links_source))
        self.assertIn('has 4', group.links_problem)

    def test_states_say_why_a_partition_is_not_free(self):
        self.take(1, 'i1')
        self.take(2, 'i2')
        # GPUs 0, 2 and 3: the half of all three, and all eight.
        expected = {'taken': 2, 'overlapped': 5, 'free': 8}
        self.assertEqual(expected, self.states(self.group()))
        [group] = group_admin.list_all(self.db, 'h1', silent_after=-1.0)
        self.assertEqual(
            {'taken': 2, 'overlapped': 5, 'unavailable': 8},
            self.states(group))

    def states(self, group):
        """Return the number of partitions by state."""
        return dict(collections.Counter(group.partition_states.values()))

    def test_own_table_of_a_group_replaces_that_of_its_variant(self):
        own = {'named_by': 'address', 'partitions': {
            'left': ['0000:00:00.0', '0000:07:00.0'],
            'one': ['0000:05:00.0']}}
        before = self.masks().sent.version.generation
        [group] = group_admin.set_links(
            self.db, 'h1', 'H100', json.dumps(own), lambda: None)
        self.assertLess(before, self.masks().sent.version.generation)
        self.assertEqual(
            ('group', {'left': '0000:00:00.0 0000:07:00.0',
                       'one': '0000:05:00.0'}, ('left', 'one'), None),
            (group.links_source, group.link_partitions,
             group.free_partitions, group.links_problem))
        self.assertEqual(('1 of 1', '1 of 2'), group.free_partition_counts)
        self.assertEqual({'0000:00:00.0', '0000:07:00.0'}, self.take(2, 'i1'))
        self.denied(2)
        self.assertEqual(('one',), self.group().free_partitions)
        [group] = group_admin.set_links(
            self.db, 'h1', 'H100', None, lambda: None)
        self.assertEqual('variant', group.links_source)
        self.assertIn(self.take(2, 'i2'), PARTITIONS)
        self.assertEqual(
            ['H100: link partitions {"named_by":"address","fabric":true,'
             '"partitions":{"left":["0000:00:00.0","0000:07:00.0"],'
             '"one":["0000:05:00.0"]}}',
             'H100: link partitions of the variant'],
            [event.detail for event in history.list_events(
                self.db, history_obj.EventFilter(kind='group_set'))][::-1])

    def test_table_that_does_not_fit_the_host_is_refused(self):
        for named_by, names, words in (
                ('order', [0, 1], 'names 2 GPUs'),
                ('slot', ['GPU1'], 'GPU1; it has'),
                ('address', ['0000:99:00.0'], '0000:99:00.0; it has 0000:00')):
            exc = self.assertRaises(
                exception.Invalid, group_admin.set_links, self.db, 'h1',
                'H100', json.dumps({
                    'named_by': named_by, 'partitions': [names]}),
                lambda: None)
            self.assertIn(words, str(exc))
            self.assertIn('H100 on h1', str(exc))
        self.assertEqual('variant', self.group().links_source)
        self.assertRaises(
            exception.NotFound, group_admin.set_links, self.db, 'h9', 'H100',
            None, lambda: None)

    def test_table_of_a_variant_reaches_schedulers(self):
        before = self.masks().sent
        self.assertEqual(15, len(before.groups[0].types[0].partitions))
        variant_admin.set_(self.db, admin.VariantInfo(
            name='H100', vendor='10de', device='2330'))
        after = self.masks().sent
        self.assertEqual((), after.groups[0].types[0].partitions)
        self.assertLess(before.version.generation, after.version.generation)
        self.assertEqual('topology_linked', self.denied(
            2, topology=LINKED).reason)

    def test_repeated_claim_gets_the_same_partition(self):
        self.assertEqual(self.take(2, 'i1', topology=LINKED),
                         self.take(2, 'i1', topology=LINKED))

    def test_filter_knows_the_outcome_of_each_claim(self):
        for seed in range(5):
            with self.subTest(seed):
                self.compare(random.Random(seed))

    def compare(self, generator):
        """Claim and release at random; the filter must know each outcome."""
        group_admin.set_links(self.db, 'h1', 'H100', table(
            fabric=generator.random() < .5), lambda: None)
        guests = []
        for step in range(10):
            if guests and generator.random() < .4:
                self.end(guests.pop(generator.randrange(len(guests))))
            if generator.random() < .3:
                device = generator.choice(device_admin.list_all(self.db))
                device_admin.set_(
                    self.db, device.uuid, 'op', enabled=not device.enabled)
            asked = self.request(
                generator.choice([1, 2, 3, 4, 8]), f'i{step}',
                topology=generator.choice(list(request.GPUTopology)))
            view = self.masks()
            refusal = view.refusal(view.providers, asked.request)
            try:
                claims.claim(self.db, asked, lease=60)
            except exception.ClaimDenied as exc:
                self.assertEqual(
                    (exc.reason, exc.kwargs['detail']),
                    (refusal.reason, refusal.detail))
            else:
                self.assertIsNone(refusal)
                guests.append(asked.instance_uuid)
        for guest in guests:
            self.end(guest)
        for device in device_admin.list_all(self.db):
            device_admin.set_(self.db, device.uuid, 'op', enabled=True)


class WithoutFabricTest(LinkCase):

    fabric = False

    def test_gpus_without_links_can_be_claimed_but_not_as_linked(self):
        self.take(1, 'i1')
        self.take(4, 'i2', topology=LINKED)
        self.assertEqual('topology_linked', self.denied(
            3, topology=LINKED).reason)
        self.assertEqual(3, len(self.take(3, 'i3')))
        states = self.group().partition_states
        self.assertEqual('broken', states['0'])
        self.assertEqual({'taken': 2, 'broken': 7, 'overlapped': 6}, dict(
            collections.Counter(states.values())))


class ParallelTest(LinkCase):

    def test_200_parallel_claims_get_whole_partitions(self):
        names = ['h1', *(f'p{number}' for number in range(4))]
        for name in names[1:]:
            hosts.store(self.db, base.scan(
                base.EIGHT, name, base.node_uuid(name)))
        generator = random.Random(7)
        wanted = [(f'i{number}', generator.choice(names),
                   generator.choice([1, 1, 2, 2, 4, 3]))
                  for number in range(CLAIMS)]
        barrier = threading.Barrier(CLAIMS)
        with concurrent.futures.ThreadPoolExecutor(CLAIMS) as threads:
            outcomes = list(threads.map(
                lambda want: self.attempt(barrier, *want), wanted))
        self.check(names, wanted, outcomes)

    def attempt(self, barrier, instance, host, count):
        """Claim when all others do; None: it was denied.

        Whoever waits too long is told to come again, as nova-compute does.
        """
        barrier.wait(300)
        while True:
            try:
                return self.take(count, instance, host=host, topology=LINKED)
            except exception.ClaimDenied:
                return None
            except exception.DatabaseBusy:
                continue

    def check(self, names, wanted, outcomes):
        taken = {name: [] for name in names}
        for (_, host, count), got in zip(wanted, outcomes, strict=True):
            if got is not None:
                self.assertEqual(count, len(got))
                self.assertIn(got, PARTITIONS)
                taken[host].append(got)
        for name, parts in taken.items():
            used = frozenset().union(*parts)
            self.assertEqual(len(used), sum(map(len, parts)), name)
            # Nobody released any, so what was denied does not fit now.
            left = {len(part) for part in PARTITIONS if not part & used}
            denied = {count for (_, host, count), got
                      in zip(wanted, outcomes, strict=True)
                      if host == name and got is None}
            self.assertEqual(set(), left & denied, name)
            self.assertTrue(parts)
