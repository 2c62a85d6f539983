# SPDX-License-Identifier: Apache-2.0
"""Tests of nova-compute with a configuration with which it cannot start."""

import types

import fixtures
import nova.conf
from nova.virt import driver
from oslo_config import cfg
from oslo_config import fixture as config_fixture
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.virt import service

CONF = nova.conf.CONF


class ConfiguredTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())

    def load(self):
        """Have Nova load the driver, as nova-compute does when it starts."""
        driver.load_compute_driver(
            types.SimpleNamespace(reportclient=None), 'gpgpu.GpuFakeDriver')

    def ended(self, *texts):
        """Check that Nova is ended with one line that has texts."""
        exc = self.assertRaises(SystemExit, self.load)
        self.assertEqual(1, exc.code)
        self.assertNotIn('Traceback', self.log.output)
        [line] = [line for line in self.log.output.splitlines()
                  if line.startswith('nova-compute cannot start: ')]
        for text in texts:
            self.assertIn(text, line)

    def test_other_nova_is_refused_by_name(self):
        for found in ('33.0.0', '34.0.1'):
            service.check_nova_version(found)
        for found in ('32.1.0', '35.0.0', '3.4', '340.0', ''):
            exc = self.assertRaises(
                exception.ConfigInvalid, service.check_nova_version, found)
            self.assertIn(found, str(exc))
            self.assertIn('33 (2026.1) and 34 (2026.2)', str(exc))

    def test_driver_is_not_made_for_another_nova(self):
        self.useFixture(fixtures.MockPatch(
            'importlib.metadata.version', return_value='32.1.0'))
        self.ended('works with Nova 33 (2026.1) and 34 (2026.2), '
                   'and this is Nova 32.1.0')

    def test_wrong_value_is_named(self):
        # Nova takes a ValueError for a driver of another type.
        self.load()
        self.useFixture(config_fixture.Config(CONF)).load_raw_values(
            'gpgpu', rpc_timeout='soon')
        self.ended('rpc_timeout', 'soon')
        self.assertNotIn('is not of type', self.log.output)

    def test_wrong_machine_is_named(self):
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        conf([], default_config_files=[])
        conf.set_override('machine', 'hgx-h100-9', 'gpgpu_fake')
        conf.set_override('machines', {'h2': '/nowhere'}, 'gpgpu_fake')
        for name, text in (('h1', 'machine: machine hgx-h100-9 (known: '),
                           ('h2', 'machines (h2): machine /nowhere ')):
            with self.assertRaises(SystemExit), service.or_end():
                fake_host.FakeHost.for_host(conf, name)
            self.assertIn(f'nova-compute cannot start: Option [gpgpu_fake] '
                          f'{text}', self.log.output)
        self.assertNotIn('Traceback', self.log.output)

    def test_other_errors_are_not_hidden(self):
        with self.assertRaisesRegex(ValueError, 'a bug'), service.or_end():
            raise ValueError('a bug')
