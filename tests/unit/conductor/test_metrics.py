# SPDX-License-Identifier: Apache-2.0
import uuid

from oslotest import base
from prometheus_client import generate_latest

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import metrics
from gpgpu_plugin.db import api
from gpgpu_plugin.domain import ledger
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.rpc import server
from tests.fixtures import metric_families
from tests.unit.conductor import base as conductor_base

INSTANCE = str(uuid.uuid4())


def denied(reason='not_enough_available'):
    return exception.ClaimDenied(
        instance=INSTANCE, host='h1', reason=reason, detail='0 of 1')


class MetricsTestCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.counters, self.registry = metric_families.registry()

    def value(self, name, **labels):
        return self.registry.get_sample_value(name, labels)

    def handle(self, method, error=None, seconds=0.2, **arguments):
        self.counters.handled(server.Handled(
            method=method, arguments=arguments, seconds=seconds, error=error))


class NotificationsTest(MetricsTestCase):

    def test_notifications_are_counted(self):
        self.counters.published(5)
        self.counters.publish_failed()
        self.counters.notifications_dropped(2)
        self.assertEqual((3, 5, 1, 2), tuple(map(self.value, (
            'gpgpu_notifications_waiting',
            'gpgpu_notifications_published_total',
            'gpgpu_notification_failures_total',
            'gpgpu_notifications_dropped_total'))))


class CallsTest(MetricsTestCase):

    def test_outcome_follows_from_the_error(self):
        for error, expected in (
                (None, 'ok'), (denied(), 'denied'),
                (exception.RequestExpired(
                    method='claim', subject='i', wanted=1, waited=2),
                 'expired'),
                (exception.CallerRefused(method='claim', reason='r'),
                 'refused'),
                (exception.NotOwner(change='c', host='h2'), 'refused'),
                (exception.Fenced(host='h1', reason='r'), 'fenced'),
                (exception.SessionLost(session=1, host='h1', reason='r'),
                 'fenced'),
                (exception.DatabaseBusy(reason='r'), 'database_busy'),
                (exception.DatabaseUnavailable(reason='r'),
                 'database_unavailable'),
                (exception.NotFound(kind='host', name='h9'), 'rejected'),
                (KeyError('x'), 'failed')):
            self.assertEqual(expected, metrics.outcome(error))
            before = self.value('gpgpu_rpc_calls_total', method='report',
                                outcome=expected)
            self.handle('report', error)
            self.assertEqual(before + 1, self.value(
                'gpgpu_rpc_calls_total', method='report', outcome=expected))

    def test_method_that_does_not_exist_makes_no_series(self):
        for method in ('nonsense', None, ['claim'], 'm' * 1000):
            self.handle(method, exception.CallerRefused(
                method='a message', reason='malformed'))
        self.assertEqual(4, self.value(
            'gpgpu_rpc_calls_total', method='other', outcome='refused'))
        self.assertNotIn(b'nonsense', generate_latest(self.registry))

    def test_seconds_of_a_call_are_counted_by_method(self):
        self.handle('claim', denied(), seconds=3)
        self.assertEqual(3, self.value(
            'gpgpu_rpc_seconds_sum', method='claim'))
        self.assertEqual((0, 1), tuple(self.value(
            'gpgpu_rpc_seconds_bucket', method='claim', le=le)
            for le in ('2.5', '5.0')))

    def test_claim_is_granted_or_refused_with_a_reason(self):
        self.handle('claim')
        self.handle('claim', denied('topology_same_numa'))
        self.handle('claim', exception.DatabaseBusy(reason='r'))
        self.assertEqual(1, self.value('gpgpu_claims_granted_total'))
        self.assertEqual(
            {'topology_same_numa': 1.0}, {
                reason: count for reason in request.Reason
                if (count := self.value('gpgpu_claims_refused_total',
                                        reason=str(reason)))})

    def test_pages_of_the_feed_are_first_ones_and_next_ones(self):
        for marker in (None, 7, 9):
            self.handle('changes_since', since=0, marker=marker)
        self.assertEqual([1, 2], [
            self.value('gpgpu_feed_pages_total', page=page)
            for page in ('first', 'next')])

    def test_postponed_cleaning_is_counted_by_its_call(self):
        self.handle('clean_postponed')
        self.handle('clean_postponed', exception.Conflict(
            kind='device', name='d', reason='r'))
        self.assertEqual(1, self.value(
            'gpgpu_cleanings_total', verdict='postponed'))


class CountersTest(MetricsTestCase):

    def test_cleaning_is_counted_with_its_seconds(self):
        self.counters.cleaned(cleaning.EndedCleaning(ledger.Verdict.FAILED,
                                                     12.0))
        self.counters.cleaned(cleaning.EndedCleaning(ledger.Verdict.FAILED,
                                                     None))
        self.assertEqual(2, self.value(
            'gpgpu_cleanings_total', verdict='failed'))
        self.assertEqual((1, 12), (
            self.value('gpgpu_cleaning_seconds_count'),
            self.value('gpgpu_cleaning_seconds_sum')))

    def test_request_without_a_host_is_counted_by_its_kind(self):
        self.counters.request_refused('no_candidate')
        self.assertEqual([1, 0], [
            self.value('gpgpu_requests_refused_total', kind=kind)
            for kind in ('no_candidate', 'filter_refused')])

    def test_failed_transaction_is_counted_by_its_kind(self):
        self.counters.failed(api.Failure.DEADLOCK)
        self.assertEqual(1, self.value(
            'gpgpu_database_errors_total', kind='deadlock'))

    def test_series_begin_with_0(self):
        for name, label, values in (
                ('claims_refused', 'reason', request.Reason),
                ('cleanings', 'verdict', metrics.VERDICTS),
                ('database_errors', 'kind', api.Failure)):
            for value in values:
                self.assertEqual(0, self.value(
                    f'gpgpu_{name}_total', **{label: str(value)}), value)
        for method in metric_families.METHODS:
            self.assertEqual(0, self.value(
                'gpgpu_rpc_calls_total', method=method, outcome='failed'))

    def test_two_conductors_in_one_process_count_apart(self):
        other, registry = metric_families.registry()
        other.failed(api.Failure.BUSY)
        self.assertEqual(0, self.value(
            'gpgpu_database_errors_total', kind='busy'))
        self.assertEqual(1, registry.get_sample_value(
            'gpgpu_database_errors_total', {'kind': 'busy'}))


class GaugesTest(MetricsTestCase):

    def samples(self, *args, **kwargs):
        _, registry = metric_families.registry(*args, **kwargs)
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for name, family in metric_families.parsed(
                generate_latest(registry)).items()
            for sample in family.samples}

    def test_gauges_have_the_labels_of_their_rows(self):
        found = self.samples()
        self.assertEqual(8, found[
            'gpgpu_devices', ('enabled', 'true'), ('host', 'h1'),
            ('state', 'available'), ('variant', 'H100')])
        self.assertEqual(2, found[
            'gpgpu_devices', ('enabled', 'false'), ('host', 'h1'),
            ('state', 'unmanaged'), ('variant', '')])
        of_type = (('host', 'h1'), ('variant', 'H100'),
                   ('vgpu_type', 'passthrough'))
        self.assertEqual((8, 7), (
            found['gpgpu_max_capacity', *of_type],
            found['gpgpu_remaining_capacity', *of_type]))
        self.assertEqual((1000.5, 0), tuple(
            found['gpgpu_host_heard_timestamp_seconds', ('host', host)]
            for host in ('h1', 'h2')))
        self.assertEqual((1, 0.25), (
            found['gpgpu_database_up',],
            found['gpgpu_database_read_seconds',]))

    def test_host_counts_as_silent_after_a_time(self):
        self.assertEqual((2, 1), tuple(
            self.samples()[name,] for name in (
                'gpgpu_hosts', 'gpgpu_silent_hosts')))

    def test_without_hosts_no_series_has_one(self):
        found = self.samples(per_host=False)
        self.assertEqual([], [
            key for key in found if 'host' in dict(key[1:])])
        self.assertEqual(8, found[
            'gpgpu_devices', ('enabled', 'true'), ('state', 'available'),
            ('variant', 'H100')])
        self.assertEqual(1, found['gpgpu_silent_hosts',])
        self.assertNotIn('gpgpu_host_heard_timestamp_seconds',
                         {key[0] for key in found})

    def test_database_that_is_down_leaves_the_counters(self):
        found = self.samples(None)
        self.assertEqual(0, found['gpgpu_database_up',])
        self.assertEqual(0, found['gpgpu_claims_granted_total',])
        self.assertEqual(set(), {key[0] for key in found} & {
            'gpgpu_devices', 'gpgpu_hosts', 'gpgpu_remaining_capacity'})


class TextTest(MetricsTestCase):

    def test_library_adds_no_series(self):
        self.handle('claim')
        for names in (b'_created', b'python_', b'process_'):
            self.assertNotIn(names, generate_latest(self.registry))

    def test_version_is_shown(self):
        self.assertIn(b'gpgpu_build_info{rpc_version="3.0",version="',
                      generate_latest(self.registry))


class ReadTest(conductor_base.ConductorTestCase):

    def test_nobody_who_uses_a_device_is_shown(self):
        self.boot(2, INSTANCE)
        _, registry = metric_families.registry(
            metrics.read(self.db, per_host=True, silent_after=900))
        found = generate_latest(registry).decode()
        self.assertIn('gpgpu_devices{enabled="true",host="h1",'
                      'state="assigned",variant="H100"} 2.0', found)
        self.assertNotRegex(found, '[0-9a-f]{8}-[0-9a-f]{4}-')
