# SPDX-License-Identifier: Apache-2.0
"""Tests of the program that resets knobs by NVIDIA's gpu-admin-tools."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import fixtures

from gpgpu_plugin import vfio
from gpgpu_plugin.privsep import guard
from tests.unit.host.cleaning import card

TOP = pathlib.Path(__file__).parents[2]
PROGRAM = TOP / 'etc/gpgpu/knobs/nvidia.py'
TOOL = TOP / 'tests/fixtures/nvidia_gpu_tools.py'
NOW = {'ecc': True, 'cc': 'off', 'ppcie': 'off'}


class ProgramCase(card.CardCase):
    """The program, a tool that prints what NVIDIA's does, and a fake sysfs."""

    machine = 'hgx-h100-8'

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.tool = self.folder / 'nvidia_gpu_tools.py'
        shutil.copy(TOOL, self.tool)
        self.program = self.folder / 'knobs'
        self.program.write_text(self.with_paths(PROGRAM.read_text()))
        self.command = [sys.executable, '-I', str(self.program)]
        self.host.prepare(self.device())
        self.state(NOW)

    def with_paths(self, text):
        for name, value in (('TOOL', self.tool), ('SYSFS', self.root)):
            [line] = [line for line in text.splitlines()
                      if line.startswith(f'{name} = ')]
            text = text.replace(line, f'{name} = {str(value)!r}')
        return text

    def state(self, now):
        (self.folder / 'GPU_TOOLS_STATE').write_text(json.dumps(
            {'address': self.address, 'now': now}))

    def next(self):
        return json.loads((self.folder / 'GPU_TOOLS_STATE').read_text()).get(
            'next')

    def attribute(self, name):
        return pathlib.Path(
            self.root, 'bus/pci/devices', self.address, name)

    def run_program(self, *arguments):
        return subprocess.run(
            [*self.command, *arguments], capture_output=True, text=True,
            check=False)

    def refused(self, *words, arguments=None):
        done = self.run_program(*(arguments or ('reset', self.address)))
        self.assertNotEqual(0, done.returncode)
        self.assertEqual('', done.stdout)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertIsNone(self.next())


class ProgramTest(ProgramCase):

    def query(self):
        done = self.run_program('query', self.address)
        self.assertEqual(0, done.returncode, done.stderr)
        return json.loads(done.stdout), done.stderr

    def test_every_knob_that_the_tool_knows_is_shown(self):
        self.assertEqual(
            ({'ecc': 'on', 'cc': 'off', 'ppcie': 'off'}, ''), self.query())
        self.state({'ecc': False, 'mig': True})
        self.assertEqual(({'ecc': 'off', 'mig': 'on'}, ''), self.query())

    def test_value_that_the_tool_does_not_show_is_unknown(self):
        self.state({**NOW, 'cc': 'on'})
        found, errors = self.query()
        self.assertEqual(
            {'ecc': 'unknown', 'cc': 'on', 'ppcie': 'off'}, found)
        self.assertIn('querying ECC is blocked', errors)

    def test_knob_of_a_later_tool_is_unknown(self):
        self.tool.write_text(self.tool.read_text().replace(
            "DEFAULTS = {", "DEFAULTS = {'new': 1, "))
        self.state({**NOW, 'new': 2})
        self.assertEqual('unknown', self.query()[0]['new'])

    def test_reset_sets_all_defaults(self):
        self.state({**NOW, 'ecc': False})
        done = self.run_program('reset', self.address)
        self.assertEqual((0, '', ''), (
            done.returncode, done.stdout, done.stderr))
        self.assertEqual(NOW, self.next())

    def test_tool_that_fails_is_an_error_with_its_output(self):
        self.state(NOW)
        state = self.folder / 'GPU_TOOLS_STATE'
        state.write_text(state.read_text().replace(self.address, 'none'))
        self.refused('ended with status 1', 'found nothing')
        self.assertEqual(3, self.run_program(
            'query', self.address).returncode)
        self.tool.unlink()
        self.refused('is missing: install gpu-admin-tools')
        self.assertEqual(1, self.run_program(
            'query', self.address).returncode)

    def test_tool_that_prints_something_else_is_an_error(self):
        self.tool.write_text('print("GPU 0000:00:00.0 {}")\n')
        self.refused('printed no line', arguments=('query', self.address))

    def test_gpu_in_use_is_refused(self):
        self.attribute('enable').write_text('1\n')
        self.refused(f'a process has {self.address} open')

    def test_gpu_of_a_driver_of_the_host_is_refused(self):
        driver = self.attribute('driver')
        driver.unlink()
        self.refused(self.address)
        os.symlink('../../../../bus/pci/drivers/nvidia', driver)
        self.refused('bound to nvidia, not to a VFIO driver')

    def test_device_of_another_vendor_is_refused(self):
        self.attribute('vendor').write_text('0x1002\n')
        self.refused('not an NVIDIA GPU')

    def test_wrong_arguments_are_refused(self):
        for arguments in (('query',), ('show', self.address),
                          ('query', self.address, 'more')):
            self.refused('usage:', arguments=arguments)
        for address in ('27:00.0', '0000:27:00.0/../0000:01:00.0', '-h'):
            self.refused('not a PCI address', arguments=('reset', address))

    def test_patterns_are_those_of_the_helper(self):
        """The program runs alone, without the plugin."""
        text = PROGRAM.read_text()
        self.assertIn(f"ADDRESS = r'{guard.ADDRESS}'", text)
        self.assertIn(f"r'{vfio.DRIVER}'", text)

    def test_program_is_executable_and_isolated(self):
        """Root runs it: no module of the caller's folder is imported."""
        self.assertTrue(os.access(PROGRAM, os.X_OK))
        self.assertEqual('#!/usr/bin/python3 -I',
                         PROGRAM.read_text().splitlines()[0])


class StepTest(ProgramCase):

    def setUp(self):
        super().setUp()
        # All backends have it; it never changes while a host lives.
        object.__setattr__(
            self.host.access, 'knobs_command', ' '.join(self.command))
        self.host.release(self.device())
        hot_reset = self.vfio.hot_reset

        def apply(address, functions):
            hot_reset(address, functions)
            if self.next():
                self.state(self.next())
        self.vfio.hot_reset = apply

    def test_knobs_of_a_guest_are_reset_and_read_back(self):
        self.state({'ecc': False, 'cc': 'on', 'ppcie': 'off'})
        verdict, results = self.clean('reset+knobs+settings')
        self.assertTrue(verdict.passed, verdict.failure)
        facts = results['knobs'].facts
        self.assertEqual(
            {'ecc': 'unknown', 'cc': 'on', 'ppcie': 'off'},
            json.loads(facts['before']))
        self.assertEqual({'ecc': 'on', 'cc': 'off', 'ppcie': 'off'},
                         json.loads(facts['after']))
