# SPDX-License-Identifier: Apache-2.0
"""Tests of the limits of connections."""

import sqlalchemy as sa
from oslotest import base

from gpgpu_plugin.db import api


class URLTest(base.BaseTestCase):

    def of(self, url):
        return dict(api.Limits(10).url(sa.make_url(url)).query)

    def test_drivers_get_their_limits(self):
        self.assertEqual(
            {'connect_timeout': '4', 'tcp_user_timeout': '10000'},
            self.of('postgresql+psycopg2://h/gpgpu'))
        self.assertEqual(
            {'charset': 'utf8mb4', 'connect_timeout': '4',
             'read_timeout': '9', 'write_timeout': '9'},
            self.of('mysql+pymysql://h/gpgpu?charset=utf8mb4'))

    def test_driver_waits_longer_than_the_server(self):
        url = sa.make_url('mysql+pymysql://h/gpgpu')
        for caller in (1, 2, 3, 5, 7, 10, 60):
            limit = api.Limits(caller)
            self.assertGreater(
                int(limit.url(url).query['read_timeout']), limit.statement)

    def test_limits_of_the_url_stay(self):
        self.assertEqual('3', self.of(
            'mysql+pymysql://h/gpgpu?read_timeout=3')['read_timeout'])

    def test_other_drivers_get_none(self):
        for url in ('sqlite:///x', 'postgresql+asyncpg://h/gpgpu'):
            self.assertEqual({}, self.of(url))


class ExceededTest(base.BaseTestCase):

    def test_errors_of_limits_are_found_in_their_wrappers(self):
        class LockNotAvailable(Exception):
            pgcode = '55P03'
        for original in (LockNotAvailable(),
                         Exception(1205, 'Lock wait timeout exceeded'),
                         Exception(1969, 'max_statement_time exceeded')):
            self.assertTrue(api.is_limit_exceeded(
                sa.exc.DBAPIError('SELECT', {}, original)))

    def test_other_errors_are_no_limits(self):
        for original in (Exception(1213, 'Deadlock found'), Exception('x')):
            self.assertFalse(api.is_limit_exceeded(
                sa.exc.DBAPIError('SELECT', {}, original)))


class ReadOnlyTest(base.BaseTestCase):

    def test_errors_of_read_only_servers_are_found(self):
        class ReadOnlySqlTransaction(Exception):
            pgcode = '25006'
        for original in (
                ReadOnlySqlTransaction(),
                Exception(1290, 'running with the --read-only option'),
                Exception(1047, 'WSREP has not yet prepared node')):
            self.assertTrue(api.is_read_only(
                sa.exc.DBAPIError('UPDATE', {}, original)))

    def test_other_errors_are_no_read_only_servers(self):
        self.assertFalse(api.is_read_only(
            sa.exc.DBAPIError('UPDATE', {}, Exception(1213, 'Deadlock'))))
