# SPDX-License-Identifier: Apache-2.0
"""Tests of how many calls one conductor handles at once."""

from oslo_config import cfg
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import threads
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.rpc import transport as rpc_transport


class ConcurrencyTest(base.BaseTestCase):

    def configured(self, **values):
        """Return a configuration; the group of an option is in its name."""
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        conf([], project='gpgpu-test', default_config_files=[])
        rpc_transport.register_server_opts(conf)
        threads.api.register_opts(conf)
        for name, value in values.items():
            group, _, option = name.rpartition('__')
            conf.set_override(option, value, group or None)
        threads.set_defaults(conf)
        return conf

    def limits(self, conf):
        return (conf.oslo_messaging_rabbit.rabbit_qos_prefetch_count,
                conf.executor_thread_pool_size,
                conf.oslo_messaging_rabbit.rpc_conn_pool_size,
                conf.database.max_pool_size + conf.database.max_overflow)

    def test_defaults_follow_from_the_number_of_threads(self):
        for values, expected in (
                ({}, (10, 30, 40, 48)),
                ({'gpgpu_conductor__vendordata_bind': '127.0.0.1:9000'},
                 (10, 22, 32, 48)),
                ({'executor_thread_pool_size': 8}, (8, 8, 18, 26)),
                ({'executor_thread_pool_size': 8,
                  'database__max_pool_size': 20}, (8, 8, 18, 26)),
                ({'executor_thread_pool_size': 8,
                  'gpgpu_conductor__vendordata_bind': '127.0.0.1:9000'},
                 (8, 8, 18, 34))):
            conf = self.configured(**values)
            threads.check_threads(conf)
            self.assertEqual(expected, self.limits(conf))

    def test_transport_takes_the_limit_of_the_broker(self):
        conf = self.configured(executor_thread_pool_size=8)
        conf.set_override('transport_url', 'rabbit://', 'gpgpu')
        transport = rpc_transport.get_transport(conf)
        self.addCleanup(transport.cleanup)
        self.assertEqual(8, transport._driver.prefetch_size)

    def refused(self, **values):
        """Return the message for a configuration."""
        return str(self.assertRaises(
            exception.ConfigInvalid, threads.check_threads,
            self.configured(**values)))

    def test_more_threads_than_connections_are_refused(self):
        said = self.refused(database__max_overflow=10)
        for words in ('max_pool_size and max_overflow', '15 connections',
                      'executor_thread_pool_size', 'need 48'):
            self.assertIn(words, said)

    def test_pool_without_limit_is_accepted(self):
        for option, value in (('max_overflow', -1), ('max_pool_size', 0)):
            threads.check_threads(self.configured(
                **{f'database__{option}': value}))

    def test_more_calls_than_threads_are_refused(self):
        for value in (0, 31):
            said = self.refused(
                oslo_messaging_rabbit__rabbit_qos_prefetch_count=value)
            for words in ('rabbit_qos_prefetch_count',
                          'executor_thread_pool_size',
                          'between 1 and 30'):
                self.assertIn(words, said)
