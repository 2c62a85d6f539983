# SPDX-License-Identifier: Apache-2.0
"""Tests of the conductor's client: messages, timeouts, errors."""

import inspect
from collections.abc import Callable
from collections.abc import Mapping

import fixtures
import oslo_messaging
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin import exception
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import conductor as conductor_fixture


class _Sent(Exception):
    """Error raised in place of sending a message."""

    def __init__(self, method: str, arguments: Mapping[str, object]):
        super().__init__(method)
        self.method = method
        self.arguments = arguments


class _Recorder:
    """An RPC client that records what it would send, and fails."""

    def __init__(self) -> None:
        self.timeouts: list[object] = []
        self.fanouts: list[object] = []
        self.error: Exception | None = None

    def prepare(self, *, timeout: object = None,
                **kwargs: object) -> '_Recorder':
        if timeout is not None:
            self.timeouts.append(timeout)
        self.fanouts.append(kwargs.get('fanout', False))
        return self

    def cast(self, ctxt: context.RequestContext, method: str,
             **arguments: object) -> None:
        """Let the broker be probed; fail with all other messages."""
        if method != 'probe':
            raise self.error or _Sent(method, arguments)

    def call(self, ctxt: context.RequestContext, method: str,
             **arguments: object) -> object:
        raise self.error or _Sent(method, arguments)


def arguments(method: Callable[..., object]) -> list[str]:
    """Return the names of the wire's arguments."""
    return [name for name in inspect.signature(method).parameters
            if name not in ('self', 'ctxt')]


class ClientCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf()).conf
        self.conf.set_override('rpc_timeout', 90, 'gpgpu')
        self.transport = rpc_transport.get_transport(self.conf)
        self.addCleanup(self.transport.cleanup)
        self.topics: list[str] = []

    def client(self, **kwargs):
        self.sender = _Recorder()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.transport.client', self._connect))
        return conductor_client.ConductorAPI(
            self.conf, self.transport, **kwargs)

    def _connect(self, transport, topic, version):
        self.topics.append(topic)
        return self.sender


class SendTest(ClientCase):

    def test_client_sends_the_methods_and_arguments_of_the_contract(self):
        api = self.client()
        served = contract.methods(conductor_contract.Conductor)
        self.assertIn('claim', served)
        for name, method in served.items():
            values = {argument: 7 if argument == 'limit'
                      else f'<{argument}>' for argument in arguments(method)}
            sent = self.assertRaises(
                _Sent, getattr(api, name), context.admin(), **values)
            self.assertEqual((name, values), (sent.method, sent.arguments))

    def test_choices_go_to_all_conductors(self):
        self.assertRaises(
            _Sent, self.client().chosen, context.admin(), choices=())
        self.assertIs(True, self.sender.fanouts[-1])

    def test_answer_goes_to_all_conductors(self):
        sent = self.assertRaises(
            _Sent, self.client().answer, context.admin(), 'h1', 'q1')
        self.assertIs(True, self.sender.fanouts[-1])
        self.assertEqual({'host': 'h1', 'question': 'q1', 'usages': (),
                          'drifts': ()}, sent.arguments)

    def test_hosts_are_examined_in_batches(self):
        api, found = self.client(), []

        def call(ctxt, method, *, hosts, repairs):
            found.append((self.sender.timeouts[-1], hosts, repairs))
            return [codec.to_primitive(drift.of(
                'host_not_examined', hosts[0], hosts[0]))]
        self.sender.call = call
        drifts = api.examine_hosts(
            context.admin(), list(map(str, range(250))), ['offer'])
        self.assertEqual(['0', '100', '200'], [one.host for one in drifts])
        self.assertEqual([(90 + compute_api.REPAIR_TIMEOUT, size, ['offer'])
                          for size in (100, 100, 50)],
                         [(waited, len(hosts), repairs)
                          for waited, hosts, repairs in found])

    def test_argument_that_is_left_out_is_sent_as_none(self):
        api = self.client()
        sent = self.assertRaises(
            _Sent, api.device_list, context.admin(), used_by='i1')
        self.assertEqual(
            {'host': None, 'variant': None, 'state': None, 'used_by': 'i1',
             'project': None, 'type': None, 'vgpu_type': None,
             'health': None, 'faulty': False, 'include_retired': False,
             'limit': 1000, 'marker': None},
            sent.arguments)


class CallerTest(ClientCase):

    def topics_of(self, method, *args, **kwargs):
        self.topics.clear()
        api = self.client(**kwargs)
        self.assertRaises(_Sent, getattr(api, method), context.admin(), *args)
        return [topic for topic in self.topics if 'probe' not in topic]

    def test_call_goes_to_the_topic_of_its_caller(self):
        for kind in (context.CallerKind.HOST, context.CallerKind.OPERATOR):
            self.assertEqual(
                [f'gpgpu-conductor-{kind}'],
                self.topics_of('instance_assignments', 'i1', caller=kind))

    def test_process_that_is_all_callers_finds_the_topic(self):
        for method, args, kind in (
                ('clean_tasks', ['h1'], 'host'),
                ('changes_since', [0, [], None], 'scheduler'),
                ('variant_show', ['v'], 'operator')):
            self.assertEqual([f'gpgpu-conductor-{kind}'],
                             self.topics_of(method, *args))

    def test_missing_key_is_found_before_the_first_call(self):
        self.conf.set_override('sign_calls', True, 'gpgpu')
        self.conf.set_override('keys_path', '/nonexistent', 'gpgpu')
        exc = self.assertRaises(
            exception.ConfigInvalid, self.client,
            caller=context.CallerKind.HOST, name='h1')
        self.assertIn('/nonexistent/host.key', str(exc))


class TimeoutTest(ClientCase):

    def timeout_of(self, method, *args, **kwargs):
        self.assertRaises(_Sent, method, context.admin(), *args, **kwargs)
        return self.sender.timeouts[-1]

    def test_call_waits_as_long_as_the_option_says(self):
        self.assertEqual(90, self.timeout_of(self.client().host_list))

    def test_timeout_of_the_client_goes_before_the_option(self):
        self.assertEqual(5, self.timeout_of(
            self.client(timeout=5).host_list))

    def test_delete_of_a_host_waits_for_the_conductors_question_too(self):
        # The conductor asks nova-compute, which may be silent.
        self.assertEqual(
            90 + compute_api.PING_TIMEOUT,
            self.timeout_of(self.client().host_delete, 'h1'))

    def test_assignment_list_and_end_wait_longer_for_the_hosts(self):
        client = self.client()
        for method, args, kwargs in (
                (client.assignment_list, (), {}),
                (client.assignment_end, (['a1'],),
                 {'force': True, 'actor': 'root'})):
            self.assertEqual(
                90 + compute_api.USAGE_TIMEOUT,
                self.timeout_of(method, *args, **kwargs))


class RepeatTest(ClientCase):

    def setUp(self):
        super().setUp()
        self.seconds = 0.0
        self.useFixture(fixtures.MockPatch(
            'gpgpu_plugin.rpc.conductor_client.time.monotonic',
            lambda: self.seconds))

    def silent(self, lost, **kwargs):
        """Return a client whose first calls get no answer, and its calls."""
        api = self.client(**kwargs)
        found = []

        def call(ctxt, method, **arguments):
            waited = self.sender.timeouts[-1]
            found.append((ctxt.wanted, waited, ctxt.request_id))
            self.seconds += waited
            if len(found) <= lost:
                raise oslo_messaging.MessagingTimeout('lost')
            raise _Sent(method, arguments)
        self.sender.call = call
        return api, found

    def release(self, api):
        return api.release(context.admin(), 'origin', ())

    def test_lost_call_is_sent_again_within_its_limit(self):
        api, found = self.silent(lost=2, timeout=10)
        self.assertRaises(_Sent, self.release, api)
        self.assertEqual([(10, 2.5), (7.5, 2.5), (5, 2.5)],
                         [call[:2] for call in found])
        # By which the conductor recognises it.
        self.assertEqual(1, len({call[2] for call in found}))

    def test_silence_lasts_as_long_as_without_repeats(self):
        api, found = self.silent(lost=99, timeout=10)
        exc = self.assertRaises(
            exception.ConductorUnavailable, self.release, api)
        self.assertEqual(10, exc.kwargs['timeout'])
        self.assertEqual((10, 4), (self.seconds, len(found)))

    def test_short_limit_is_divided_less(self):
        for timeout, tries in ((0.5, 1), (1, 1), (3, 3)):
            api, found = self.silent(lost=99, timeout=timeout)
            self.assertRaises(
                exception.ConductorUnavailable, self.release, api)
            self.assertEqual(tries, len(found))

    def test_other_call_is_sent_once(self):
        api, found = self.silent(lost=99, timeout=10)
        self.assertRaises(exception.ConductorUnavailable, api.host_list,
                          context.admin())
        self.assertEqual([(10, 10)], [call[:2] for call in found])


class FailureTest(ClientCase):

    def test_silence_names_the_method_and_the_timeout(self):
        api = self.client()
        for error in (oslo_messaging.MessagingTimeout('nobody answers'),
                      oslo_messaging.MessageDeliveryFailure('no route')):
            with self.subTest(error=error):
                self.sender.error = error
                exc = self.assertRaises(
                    exception.ConductorUnavailable, api.host_list,
                    context.admin())
                self.assertEqual(
                    {'method': 'host_list', 'timeout': 90}, exc.kwargs)

    def test_conductors_own_error_is_raised_as_it_is(self):
        api = self.client()
        self.sender.error = exception.NotFound(kind='host', name='h9')
        self.assertIs(self.sender.error, self.assertRaises(
            exception.NotFound, api.host_show, context.admin(), 'h9'))

    def test_call_that_no_conductor_hears_is_an_error(self):
        # The in-process transport keeps what other tests sent.
        self.conf.set_override('topic_prefix', self.id()[-60:], 'gpgpu')
        exc = self.assertRaises(
            exception.ConductorUnavailable, conductor_client.ConductorAPI(
                self.conf, self.transport).host_list, context.admin())
        self.assertNotIsInstance(exc, exception.BrokerUnavailable)


class ProbeTest(ClientCase):

    def setUp(self):
        super().setUp()
        self.probes = []
        self.error = None

        def probe(conf, transport):
            self.probes.append(transport)
            if self.error is not None:
                raise self.error
        self.useFixture(fixtures.MockPatchObject(
            rpc_transport, 'probe', probe))

    def test_broker_is_probed_before_the_first_call_alone(self):
        api = self.client()
        self.assertEqual([], self.probes)
        for _ in range(2):
            self.assertRaises(_Sent, api.host_list, context.admin())
        self.assertEqual([self.transport], self.probes)

    def test_call_after_a_failed_probe_probes_again(self):
        api = self.client()
        self.error = exception.BrokerUnavailable(hosts='b', reason='refused')
        self.assertRaises(exception.BrokerUnavailable, api.host_list,
                          context.admin())
        self.assertEqual([], self.sender.timeouts)
        self.error = None
        self.assertRaises(_Sent, api.host_list, context.admin())
        self.assertEqual(2, len(self.probes))
