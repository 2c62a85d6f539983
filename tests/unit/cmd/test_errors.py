# SPDX-License-Identifier: Apache-2.0
"""Tests of error messages, without slow imports."""

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base as base_cmd


class MessageTest(base.BaseTestCase):

    def test_error_of_the_plugin_is_its_message_without_a_traceback(self):
        exc = exception.NotFound(kind='host', name='h9')
        # What oslo.messaging appends is in str() alone.
        remote = type('NotFound_Remote', (exception.NotFound,), {
            '__str__': lambda self: 'x\nTraceback'})(kind='host', name='h9')
        for error in (exc, remote):
            self.assertEqual('host h9 does not exist', base_cmd.message(error))

    def test_other_error_has_its_class_and_first_line(self):
        self.assertEqual("KeyError: 'x'", base_cmd.message(KeyError('x')))
        self.assertEqual('OSError: one', base_cmd.message(OSError('one\ntwo')))

    def test_error_without_a_text_is_its_class(self):
        self.assertEqual('ValueError: ', base_cmd.message(ValueError()))


class FirstLineTest(base.BaseTestCase):

    def test_empty_lines_at_the_beginning_do_not_count(self):
        self.assertEqual('a', base_cmd.first_line('\n a\nb'))

    def test_value_of_any_kind_has_a_first_line(self):
        self.assertEqual('None', base_cmd.first_line(None))
