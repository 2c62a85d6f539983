# SPDX-License-Identifier: Apache-2.0
import socket

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import http_server

LOCAL = http_server.Address(host='127.0.0.1', port=0)
OPTION = '[gpgpu] metrics_bind'


class AddressTest(base.BaseTestCase):

    def test_address_of_each_family_is_read_and_written(self):
        for value, family in (('127.0.0.1:9464', socket.AF_INET),
                              ('0.0.0.0:1', socket.AF_INET),
                              ('[::1]:9464', socket.AF_INET6),
                              ('[::]:65535', socket.AF_INET6)):
            found = http_server.parse(value, OPTION)
            self.assertEqual((value, family), (str(found), found.family))

    def test_anything_else_is_refused_with_an_example(self):
        for value in ('9464', ':9464', '127.0.0.1', '127.0.0.1:',
                      '127.0.0.1:0', '127.0.0.1:65536', '127.0.0.1:x',
                      '127.0.0.1:+1', '127.0.0.1: 1', '127.0.0.1:\u0661',
                      '::1:9464', '[127.0.0.1]:9464', 'localhost:9464',
                      '[::1:9464', 'http://127.0.0.1:9464'):
            exc = self.assertRaises(
                exception.ConfigInvalid, http_server.parse, value, OPTION)
            self.assertIn('[gpgpu] metrics_bind', str(exc))
            self.assertIn('such as 127.0.0.1:9464 or [::1]:9464', str(exc))

    def test_address_of_another_machine_is_refused(self):
        http_server.check_local(LOCAL, OPTION)
        # Reserved for documentation.
        exc = self.assertRaises(
            exception.ConfigInvalid, http_server.check_local,
            http_server.parse('192.0.2.1:9464', OPTION), OPTION)
        self.assertIn('cannot listen on 192.0.2.1: ', str(exc))

    def test_port_in_use_is_no_reason_to_refuse_a_reload(self):
        with socket.create_server(('127.0.0.1', 0)) as other:
            http_server.check_local(http_server.Address(
                host='127.0.0.1', port=other.getsockname()[1]), OPTION)
