# SPDX-License-Identifier: Apache-2.0
"""Tests of errors: format, groups, class and values across RPC."""

import re

import oslo_messaging
from oslo_messaging._drivers import common as messaging_common
from oslotest import base

from gpgpu_plugin import exception


def classes() -> list[type[exception.GPUPluginException]]:
    return [value for value in vars(exception).values()
            if isinstance(value, type)
            and issubclass(value, exception.GPUPluginException)]


def fields(cls: type[exception.GPUPluginException]) -> dict[str, object]:
    """Return a value for each field of the message."""
    return {name: f'<{name}>'
            for name in re.findall(r'%\((\w+)\)', cls.msg_fmt)}


class MessageTest(base.BaseTestCase):

    def test_every_message_formats(self):
        for cls in classes():
            error = cls(**fields(cls))
            for value in fields(cls).values():
                self.assertIn(value, str(error), cls.__name__)
            self.assertNotIn('%', str(error), cls.__name__)

    def test_field_that_is_left_out_is_an_error_of_the_caller(self):
        for cls in classes():
            if fields(cls):
                self.assertRaises(KeyError, cls)

    def test_given_message_goes_before_the_format(self):
        error = exception.HostError('as the driver says', path='/sys/x')
        self.assertEqual('as the driver says', str(error))
        self.assertEqual({'path': '/sys/x'}, error.kwargs)

    def test_message_of_a_long_value_is_cut(self):
        error = exception.Invalid(
            field='f' * 1000, value='v' * 1000, expected='less')
        self.assertLess(len(str(error)), 650)
        self.assertTrue(str(error).endswith(' is not valid: less'))

    def test_reason_of_a_denied_claim_is_its_name(self):
        self.assertEqual('host_unknown', exception.ClaimDenied(
            instance='i1', host='h1', reason='host_unknown',
            detail='').reason)
        self.assertEqual('unknown', exception.ClaimDenied('text').reason)


class RPCTest(base.BaseTestCase):

    def test_class_and_values_survive(self):
        for cls in classes():
            try:
                raise cls(**fields(cls))
            except cls as error:
                wire = messaging_common.serialize_remote_exception(
                    (cls, error, error.__traceback__))
            rebuilt = messaging_common.deserialize_remote_exception(
                wire, [exception.__name__])
            self.assertIsInstance(rebuilt, cls)
            self.assertNotIsInstance(rebuilt, oslo_messaging.RemoteError)
            self.assertEqual(fields(cls), rebuilt.kwargs)


class GroupTest(base.BaseTestCase):
    """Tests of the groups of errors, which callers catch."""

    def test_error_is_in_the_group_of_what_its_caller_can_do(self):
        for cls, group in (
                (exception.InvalidTransition, exception.Conflict),
                (exception.VariantTie, exception.Conflict),
                (exception.BrokerUnavailable,
                 exception.ConductorUnavailable),
                (exception.RequestExpired, exception.ConductorUnavailable),
                (exception.HostNotReady, exception.HostError),
                (exception.NoDriverCapacity, exception.HostNotReady),
                (exception.HalfPrepared, exception.HostNotReady)):
            self.assertTrue(issubclass(cls, group), cls)

    def test_refusal_and_silence_are_never_caught_together(self):
        self.assertFalse(issubclass(
            exception.ClaimDenied, exception.ConductorUnavailable))
        self.assertFalse(issubclass(
            exception.ClaimDenied, exception.Conflict))
