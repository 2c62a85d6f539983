# SPDX-License-Identifier: Apache-2.0
"""Tests of the checks of nova.conf."""

import pathlib

import fixtures
from nova import conf as nova_conf
from oslo_config import cfg
from oslo_messaging.notify import notifier

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import upgrade
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.scheduler_filters import all_filters
from tests.unit.cmd.upgrade import base
from tests.unit.cmd.upgrade import nova_conf as written

ENABLED = ('enabled_filters = ComputeFilter,ComputeCapabilitiesFilter,'
           'ImagePropertiesFilter,ServerGroupAntiAffinityFilter,'
           'ServerGroupAffinityFilter')
AVAILABLE = ('available_filters = nova.scheduler.filters.all_filters',
             'available_filters = gpgpu_plugin.scheduler_filters.all_filters')


class NovaTestCase(written.NovaConfMixin, base.ResultTestCase):

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path


class ReadTest(NovaTestCase):

    def test_options_are_those_of_nova(self):
        nova_conf.CONF.register_opts(
            notifier._notifier_opts, group='oslo_messaging_notifications')
        for group, options in upgrade.OPTS.items():
            theirs = (nova_conf.CONF if group == 'DEFAULT'
                      else nova_conf.CONF._groups[group])._opts
            for option in options:
                opt = theirs[option.dest]['opt']
                self.assertEqual(
                    (type(opt), opt.default, opt.deprecated_opts),
                    (type(option), option.default, option.deprecated_opts),
                    option.dest)

    def test_files_in_the_folder_beside_it_are_read(self):
        folder = pathlib.Path(self.folder, 'nova.conf.d')
        folder.mkdir()
        (folder / '10-gpu.conf').write_text(
            '[DEFAULT]\ncompute_driver = gpgpu.GpuLibvirtDriver\n')
        self.assertEqual('gpgpu.GpuLibvirtDriver',
                         self.nova_conf().compute_driver)

    def test_missing_file_is_an_error_that_names_it(self):
        exc = self.assertRaises(
            exception.HostError, upgrade.read, ['/nowhere/nova.conf'])
        self.assertIn('/nowhere/nova.conf', str(exc))
        self.assertIn('--nova-config-file', str(exc))


class FiltersTest(NovaTestCase):

    def filters(self, *lines):
        return upgrade.filters(self.nova_conf('[filter_scheduler]', *lines))

    def test_filters_of_nova_and_of_the_plugin_pass(self):
        self.success(self.filters(
            *AVAILABLE, f'{ENABLED},GpuNUMATopologyFilter,GpuFilter'))

    def test_names_are_those_of_the_filters(self):
        self.assertEqual(
            {'GpuFilter', 'GpuNUMATopologyFilter'},
            {found.__name__ for found in all_filters()})

    def test_unset_filters_fail(self):
        self.assertIn('enabled_filters is not set',
                      self.failure(self.filters(*AVAILABLE)))

    def test_unset_filters_of_a_compute_host_are_a_warning(self):
        self.warning(upgrade.filters(self.nova_conf(
            '[DEFAULT]', 'compute_driver = gpgpu.GpuLibvirtDriver')))

    def test_missing_filter_of_the_plugin_is_named(self):
        self.assertIn('GpuFilter is not in', self.failure(self.filters(
            *AVAILABLE, f'{ENABLED},GpuNUMATopologyFilter')))
        self.assertIn('GpuNUMATopologyFilter is not in', self.warning(
            self.filters(*AVAILABLE, f'{ENABLED},GpuFilter')))

    def test_missing_filter_of_nova_is_named(self):
        self.assertIn(
            'by default: ComputeFilter, ComputeCapabilitiesFilter, Image',
            self.warning(self.filters(*AVAILABLE, (
                'enabled_filters = GpuNUMATopologyFilter,GpuFilter'))))

    def test_filters_that_nova_does_not_find_fail(self):
        enabled = f'{ENABLED},GpuNUMATopologyFilter,GpuFilter'
        self.assertIn(f'available_filters lacks {upgrade.OUR_FILTERS}',
                      self.failure(self.filters(enabled)))
        self.assertIn(f'available_filters lacks {upgrade.NOVA_FILTERS}',
                      self.failure(self.filters(AVAILABLE[1], enabled)))


class ComputeDriverTest(NovaTestCase):

    def driver(self, name):
        return upgrade.compute_driver(self.nova_conf(
            '[DEFAULT]', f'compute_driver = {name}'))

    def test_driver_of_the_plugin_passes(self):
        self.success(self.driver('gpgpu.GpuLibvirtDriver'))

    def test_file_of_a_controller_passes(self):
        self.success(upgrade.compute_driver(self.nova_conf()))

    def test_other_driver_is_a_warning(self):
        self.assertIn('offers no GPUs', self.warning(
            self.driver('libvirt.LibvirtDriver')))

    def test_driver_without_real_gpus_is_a_warning(self):
        for name in ('GpuFakeDriver', 'GpuLibvirtFakeDriver'):
            self.assertIn('no guest gets a real GPU',
                          self.warning(self.driver(f'gpgpu.{name}')))

    def test_driver_that_does_not_exist_fails(self):
        text = self.failure(self.driver('gpgpu.LibvirtDriver'))
        self.assertIn('gpgpu.LibvirtDriver does not exist', text)
        self.assertIn('GpuLibvirtDriver', text)


class SameOptionsTest(NovaTestCase):

    def setUp(self):
        super().setUp()
        self.ours = upgrade.read([])
        self.ours.set_override(
            'transport_url', 'rabbit://c:x@one:5672/gpu', 'gpgpu')

    def same(self, *lines, url='rabbit://h:y@two:5672/gpu'):
        return upgrade.same_options(self.nova_conf(
            '[gpgpu]', f'transport_url = {url}', *lines), self.ours)

    def test_other_user_and_node_of_one_broker_pass(self):
        self.success(self.same())

    def test_other_virtual_host_fails(self):
        text = self.failure(self.same(url='rabbit://h:y@one:5672/nova'))
        self.assertIn('"nova", "gpgpu" in nova.conf, and "gpu", "gpgpu"',
                      text)
        self.assertNotIn('h:y', text)

    def test_virtual_host_without_a_name_is_that_of_the_broker(self):
        for url in ('rabbit://a@one:5672/', 'rabbit://a@one:5672//'):
            self.ours.set_override('transport_url', url, 'gpgpu')
            self.success(self.same(url='rabbit://a@one:5672/'))

    def test_other_prefix_of_topics_fails(self):
        self.assertIn('"gpu", "west" in nova.conf',
                      self.failure(self.same('topic_prefix = west')))

    def test_unsigned_calls_to_a_conductor_that_refuses_them_fail(self):
        self.assertIn('remove [gpgpu] sign_calls = false from nova.conf',
                      self.failure(self.same('sign_calls = false')))
        self.ours.set_override('sign_calls', False, 'gpgpu')
        self.success(self.same('sign_calls = false'))
        self.assertIn('remove [gpgpu] sign_calls = false from gpgpu.conf',
                      self.failure(self.same()))

    def test_other_time_is_a_warning(self):
        for option, ours in (('rpc_timeout', 10), ('digest_interval', 300)):
            self.assertIn(f'{option} is 60 in nova.conf, and {ours}',
                          self.warning(self.same(f'{option} = 60')))


class NotificationsTest(NovaTestCase):

    SENT = ('[notifications]', 'notification_format = versioned',
            'versioned_notifications_topics = x,gpu',
            '[oslo_messaging_notifications]', 'driver = messagingv2')

    def notifications(self, *lines, topic='gpu'):
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        conf([], default_config_files=[])
        conf.set_override('nova_notifications_topic', topic, 'gpgpu_conductor')
        return upgrade.notifications(self.nova_conf(*lines), conf)

    def test_topic_that_nova_sends_to_passes(self):
        self.success(self.notifications(*self.SENT))

    def test_conductor_without_a_topic_is_a_warning(self):
        self.assertIn(
            'set [gpgpu_conductor] nova_notifications_topic',
            self.warning(self.notifications(*self.SENT, topic=None)))

    def test_nova_that_sends_nothing_there_is_a_warning(self):
        self.warning(self.notifications())
        for number in (1, 2, 4):
            lines = list(self.SENT)
            del lines[number]
            self.assertIn('sends no notifications to topic gpu',
                          self.warning(self.notifications(*lines)))

    def test_file_of_a_compute_host_passes(self):
        self.success(self.notifications(
            '[DEFAULT]', 'compute_driver = gpgpu.GpuLibvirtDriver'))
