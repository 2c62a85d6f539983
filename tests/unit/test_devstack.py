# SPDX-License-Identifier: Apache-2.0
"""Tests of the DevStack plugin, whose phases run on stubs of DevStack."""

import os
import pathlib
import socket
import subprocess
import sys

import fixtures
from oslo_config import cfg

from gpgpu_plugin import context
from gpgpu_plugin.cmd import upgrade
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.db import migration
from gpgpu_plugin.rpc import signature
from tests.unit import test_meta
from tests.unit.cmd.upgrade import base

PLUGIN = test_meta.TOP / 'devstack'
STUBS = pathlib.Path(__file__).with_name('devstack_stubs.bash')
ALL_IN_ONE = 'n-api,n-sch,n-cpu'


class PhaseTest(base.ResultTestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.calls = self.folder / 'calls'
        self.conf_dir = self.folder / 'etc'
        self.state_dir = self.folder / 'state'
        self.programs = self.recording_program()
        self.manage = (f'gpgpu-manage --config-file '
                       f'{self.conf_dir}/gpgpu.conf')
        nova_folder = self.folder / 'nova'
        nova_folder.mkdir()
        (nova_folder / 'nova.conf').write_text(
            '[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\n'
            '[filter_scheduler]\nenabled_filters = ComputeFilter,'
            'NUMATopologyFilter,SameHostFilter\n')

    def recording_program(self):
        """Return a folder with a gpgpu-manage that does nothing."""
        folder = self.folder / 'bin'
        folder.mkdir()
        program = folder / 'gpgpu-manage'
        program.write_text('#!/bin/sh\necho gpgpu-manage "$@" >>"$CALLS"\n')
        program.chmod(0o755)
        return folder

    def phase(self, *arguments, services=ALL_IN_ONE, code=0, **variables):
        """Run a phase, and return the calls of functions of DevStack."""
        self.calls.write_text('')
        done = subprocess.run(
            ['bash', '-c', f'set -e; source {STUBS}; '
                           f'source {PLUGIN}/settings; '
                           f'source {PLUGIN}/plugin.sh {" ".join(arguments)}'],
            env={'PATH': os.environ['PATH'], 'LC_ALL': 'C.UTF-8',
                 'STUBS': str(self.folder), 'CALLS': str(self.calls),
                 'PROGRAMS': str(self.programs),
                 'ENABLED_SERVICES': services,
                 'GPGPU_CONF_DIR': str(self.conf_dir),
                 'GPGPU_STATE_DIR': str(self.state_dir), **variables},
            capture_output=True, text=True, check=False)
        self.assertEqual(code, done.returncode, done.stdout + done.stderr)
        return [line for line in self.calls.read_text().splitlines()
                if not line.startswith(('sudo ', 'echo_summary '))]

    def configured(self, **variables):
        calls = self.phase('stack', 'post-config', **variables)
        nova_conf = upgrade.read([str(self.folder / 'nova' / 'nova.conf')])
        return calls, nova_conf

    def own_conf(self):
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        api.register_opts(conf)
        conf([], project='gpgpu', default_config_dirs=[],
             default_config_files=[str(self.conf_dir / 'gpgpu.conf')])
        conf_gpgpu.check(conf)
        return conf

    def test_install_installs_the_package_with_the_extra_of_the_database(self):
        self.assertEqual(
            ['enable_service gpgpu-conductor',
             f'setup_develop -bindep {self.folder}/dest/gpgpu_plugin mysql'],
            self.phase('stack', 'install'))
        self.assertIn('mysql', test_meta.setup_cfg()[
            'options.extras_require'])
        self.assertIn('postgresql', test_meta.setup_cfg()[
            'options.extras_require'])

    def test_post_config_makes_a_database_and_starts_the_conductor(self):
        calls, _ = self.configured()
        self.assertEqual(
            ['enable_service gpgpu-conductor', 'recreate_database gpgpu',
             f'{self.manage} db sync', f'{self.manage} key init',
             f'{self.manage} key create operator devstack',
             f'{self.manage} key create scheduler {socket.gethostname()}',
             f'{self.manage} key create host {socket.gethostname()}',
             f'run_process gpgpu-conductor {self.programs}/gpgpu-conductor '
             f'--config-file {self.conf_dir}/gpgpu.conf'], calls)

    def test_keys_and_database_belong_together(self):
        """Those of an earlier stack.sh are replaced."""
        keys = self.conf_dir / 'keys'
        keys.mkdir(parents=True)
        for name in ('master', 'operator', 'scheduler', 'host'):
            (keys / f'{name}.key').write_text('of an earlier database')
        with (self.folder / 'nova' / 'nova.conf').open('a') as file:
            file.write('[DEFAULT]\nhost = cmp1\n')
        self.programs = pathlib.Path(sys.executable).parent
        self.configured()
        conf = self.own_conf()
        database = api.Database(conf)
        self.addCleanup(database.engine.dispose)
        migration.check_current(database.engine)
        [master] = signature.read_masters(conf)
        for kind in context.CallerKind:
            key = signature.read_caller_key(conf, kind)
            self.assertEqual(
                master.derive(kind, key.name, key.number), key)
        # [DEFAULT] host of nova-compute, not the name of the machine.
        self.assertEqual('cmp1', signature.read_caller_key(
            conf, context.CallerKind.HOST).name)

    def test_post_config_configures_nova_as_the_checks_want_it(self):
        _, conf = self.configured()
        self.assertIn('GpuLibvirtFakeDriver',
                      self.warning(upgrade.compute_driver(conf)))
        self.success(upgrade.same_options(conf, self.own_conf()))
        self.assertEqual(
            ['ComputeFilter', 'SameHostFilter', 'GpuNUMATopologyFilter',
             'GpuFilter'], conf.filter_scheduler.enabled_filters)
        self.assertIn('enables by default',
                      self.warning(upgrade.filters(conf)))
        self.assertEqual(str(self.state_dir), conf.gpgpu_compute.state_path)
        self.assertEqual(str(self.conf_dir / 'keys'), conf.gpgpu.keys_path)
        self.assertEqual('pcie-l40s-4', conf.gpgpu_fake.machine)

    def test_driver_and_machine_can_be_chosen(self):
        _, conf = self.configured(
            GPGPU_COMPUTE_DRIVER='gpgpu.GpuLibvirtDriver',
            GPGPU_FAKE_MACHINE='nvidia-t4-2')
        self.success(upgrade.compute_driver(conf))
        self.assertEqual('nvidia-t4-2', conf.gpgpu_fake.machine)

    def test_default_filters_of_devstack_are_kept(self):
        (self.folder / 'nova' / 'nova.conf').write_text('')
        _, conf = self.configured()
        self.assertEqual(
            ['ComputeFilter', 'ComputeCapabilitiesFilter',
             'GpuNUMATopologyFilter', 'GpuFilter'],
            conf.filter_scheduler.enabled_filters)

    def test_compute_node_needs_the_key_that_the_controller_made(self):
        node = {'services': 'n-cpu', 'DISABLED_SERVICES': 'gpgpu-conductor'}
        calls = self.phase('stack', 'post-config', code=1, **node)
        self.assertRegex(calls[-1], r'die \d+ .+/host.key is missing: make')
        (self.conf_dir / 'keys' / 'host.key').write_text('x')
        self.assertEqual(
            ['enable_service gpgpu-conductor'],
            self.phase('stack', 'post-config', **node))
        self.assertFalse((self.conf_dir / 'gpgpu.conf').exists())

    def test_extra_makes_variants_and_a_flavor(self):
        cloud = 'openstack --os-cloud devstack-admin flavor'
        self.assertEqual(
            ['enable_service gpgpu-conductor', f'{self.manage} variant import',
             f'{cloud} show gpu1',
             f'{self.manage} --os-cloud devstack-admin flavor set gpu1 '
             f'--gpu NVIDIA_L40S=1'], self.phase('stack', 'extra'))

    def test_unstack_stops_and_clean_removes(self):
        self.configured()
        self.assertEqual('stop_process gpgpu-conductor',
                         self.phase('unstack')[-1])
        self.assertTrue(self.conf_dir.exists())
        self.phase('clean')
        self.assertFalse(self.conf_dir.exists())
        self.assertFalse(self.state_dir.exists())

    def test_other_phases_do_nothing(self):
        for arguments in (('stack', 'pre-install'), ('stack', 'test-config')):
            self.assertEqual(['enable_service gpgpu-conductor'],
                             self.phase(*arguments))
