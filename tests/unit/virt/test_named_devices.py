# SPDX-License-Identifier: Apache-2.0

import inspect
import types
import uuid

from nova import objects
from nova.compute import manager
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.virt import requested_devices

objects.register_all()

NAME = 'h1 0000:3b:00.0'


def spec(**hints):
    return objects.RequestSpec(scheduler_hints=hints)


class NamedDevicesTest(base.BaseTestCase):

    def test_last_note_counts(self):
        named = requested_devices.NamedDevices('h1')
        self.assertEqual((), named.of('i1'))
        named.note('i1', 'h1:3b:00.0')
        self.assertEqual((NAME,), named.of('i1'))
        named.note('i1', None)
        self.assertEqual((), named.of('i1'))

    def test_other_text_denies_the_claim(self):
        named = requested_devices.NamedDevices('h1')
        for hint in ('x', []):
            named.note('i1', hint)
            exc = self.assertRaises(exception.ClaimDenied, named.of, 'i1')
            self.assertEqual('exact_devices_invalid', exc.reason)

    def test_number_of_notes_is_limited(self):
        named = requested_devices.NamedDevices('h1')
        for number in range(1001):
            named.note(str(number), NAME)
        self.assertEqual(((), (NAME,)), (named.of('0'), named.of('1')))


class ListenTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.named = requested_devices.NamedDevices('h1')
        self.calls = []
        self.instance = objects.Instance(uuid=str(uuid.uuid4()))
        self.manager = types.SimpleNamespace(**{
            name: lambda *args, **kwargs: self.calls.append((args, kwargs))
            for name in requested_devices.WRAPPED})
        requested_devices.listen_for_hints(
            types.SimpleNamespace(_compute=self.manager), self.named)

    def test_hint_is_noted_and_the_method_called(self):
        for name in requested_devices.WRAPPED:
            request = spec(gpgpu_device=[NAME])
            getattr(self.manager, name)(
                'context', instance=self.instance, request_spec=request)
            self.assertEqual((NAME,), self.named.of(self.instance.uuid))
            self.assertEqual((('context',), {
                'instance': self.instance, 'request_spec': request}),
                self.calls.pop())
            # Positional, as through Nova's proxy of an older version.
            getattr(self.manager, name)('context', self.instance, spec())
            self.assertEqual((), self.named.of(self.instance.uuid))

    def test_call_without_a_request_has_no_hint(self):
        self.manager.unshelve_instance(
            'context', self.instance, request_spec=None)
        self.assertEqual((), self.named.of(self.instance.uuid))

    def test_manager_without_a_method_is_refused_by_name(self):
        del self.manager.prep_resize
        exc = self.assertRaises(
            exception.ConfigInvalid, requested_devices.listen_for_hints,
            types.SimpleNamespace(_compute=self.manager), self.named)
        self.assertIn('prep_resize', str(exc))

    def test_methods_of_nova_get_instance_and_request(self):
        source = inspect.getsource(manager.ComputeManager)
        for name in requested_devices.WRAPPED:
            head = source.partition(f'def {name}(')[2].partition('):')[0]
            self.assertIn('instance', head, name)
            self.assertIn('request_spec', head, name)
