# SPDX-License-Identifier: Apache-2.0
"""Tests of promises about the project itself."""

import ast
import configparser
import importlib
import io
import pathlib
import re

import setuptools
from oslo_config import cfg
from oslo_config import generator
from oslotest import base

from gpgpu_plugin.cmd import commands
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain.allocation import request

TOP = pathlib.Path(__file__).resolve().parents[2]
LICENCE = '# SPDX-License-Identifier: Apache-2.0'


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(delimiters='=')
    parser.optionxform = str
    parser.read(TOP / 'setup.cfg', encoding='utf-8')
    return parser


def entry_points() -> list[tuple[str, str, str]]:
    """Return group, name and target of the entry points in setup.cfg."""
    return [
        (group, *(part.strip() for part in line.split('=', 1)))
        for group, lines in setup_cfg()['options.entry_points'].items()
        for line in lines.strip().splitlines()]


def python_files() -> list[pathlib.Path]:
    roots = ('gpgpu_plugin', 'nova', 'tests', 'bench', 'demo', 'doc', 'etc')
    return [TOP / 'setup.py', TOP / 'toxfile.py', *(
        path for root in roots for path in sorted((TOP / root).rglob('*.py'))
        if path.stat().st_size)]


def doc(name: str) -> str:
    return (TOP / 'doc' / 'source' / name).read_text(encoding='utf-8')


class TestClock(base.BaseTestCase):

    def test_rows_have_no_time_by_the_clock_of_a_conductor(self):
        # Times of processes are monotonic, those of rows the database's.
        wall = re.compile(
            r'\btime\.time\b|\b(now|today)\((datetime\.UTC)?\)|utcnow')
        self.assertEqual({
            # Compares both clocks.
            'conductor/service.py',
            # The statement itself.
            'db/clock.py'}, {
            str(path.relative_to(TOP / 'gpgpu_plugin'))
            for folder in ('conductor', 'db')
            for path in (TOP / 'gpgpu_plugin' / folder).rglob('*.py')
            if wall.search(re.sub(r'clock\.now\(\)', '',
                                  path.read_text(encoding='utf-8')))})


class TestOptions(base.BaseTestCase):

    def sample(self, name):
        """Return the sample that a service's generator file describes."""
        conf = cfg.ConfigOpts()
        generator.register_cli_opts(conf)
        conf([], default_config_files=[
            str(TOP / 'etc/gpgpu/config-generator' / name)])
        sample = io.StringIO()
        generator.generate(conf, output_file=sample)
        return sample.getvalue()

    def test_samples_have_the_options_of_their_services(self):
        for name, groups in (
                ('gpgpu-conductor.conf', {'gpgpu', 'gpgpu_conductor'}),
                ('nova-compute.conf',
                 {'gpgpu', 'gpgpu_compute', 'gpgpu_fake'}),
                ('nova-scheduler.conf', {'gpgpu', 'gpgpu_scheduler'})):
            sample = self.sample(name)
            self.assertEqual(groups, set(
                re.findall(r'(?m)^\[(gpgpu\w*)\]$', sample)))
            for group, group_opts in conf_gpgpu.GROUPS:
                for opt in group_opts if group.name in groups else ():
                    self.assertRegex(sample, f'(?m)^#{opt.dest} =', opt.dest)

    def test_host_is_not_silent_between_two_of_its_calls(self):
        # A host looks once a minute whether a call is due, and a conductor
        # stores once a minute that the host called.
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        for interval, seconds in ((10, 180), (60, 180), (300, 900)):
            conf.set_override('digest_interval', interval, 'gpgpu')
            self.assertEqual(seconds, conf_gpgpu.silent_after(conf))

    def test_every_default_can_be_read(self):
        # "$state_path" in an option state_path would be itself, for ever.
        conf = cfg.ConfigOpts()
        conf_gpgpu.register_opts(conf)
        conf([], default_config_files=[], default_config_dirs=[])
        conf_gpgpu.check(conf)
        for group, group_opts in conf_gpgpu.GROUPS:
            for opt in group_opts:
                value = conf[group.name][opt.dest]
                self.assertNotIn('$', str(value), opt.dest)

    def test_every_option_says_what_it_is(self):
        for group, group_opts in conf_gpgpu.GROUPS:
            for opt in group_opts:
                self.assertTrue(
                    (opt.help or '').endswith('.'),
                    f'[{group.name}] {opt.dest}: {opt.help!r}')


class TestPackaging(base.BaseTestCase):

    def test_entry_points_load(self):
        self.assertTrue(entry_points())
        for group, name, target in entry_points():
            module, _, attribute = target.partition(':')
            found = importlib.import_module(module)
            if attribute:
                self.assertTrue(
                    callable(getattr(found, attribute, None)),
                    f'{group}: {name} = {target}')

    def test_every_package_is_shipped(self):
        find = setup_cfg()['options.packages.find']
        shipped = setuptools.find_namespace_packages(
            str(TOP), include=find['include'].split(),
            exclude=find['exclude'].split())
        ours = {
            '.'.join(path.parent.relative_to(TOP).parts)
            for path in (TOP / 'gpgpu_plugin').rglob('__init__.py')}
        self.assertLessEqual(ours, set(shipped))
        self.assertIn('nova.virt.gpgpu', shipped)

    def test_nova_has_no_package_of_ours(self):
        # With one of these an installation would overwrite Nova's own.
        self.assertFalse((TOP / 'nova' / '__init__.py').exists())
        self.assertFalse((TOP / 'nova' / 'virt' / '__init__.py').exists())

    def test_shim_is_found_and_gives_every_driver(self):
        shim = importlib.import_module('nova.virt.gpgpu')
        drivers = [target.partition(':')[2] for group, _, target
                   in entry_points() if group == 'gpgpu_plugin.virt_drivers']
        self.assertTrue(drivers)
        for driver in drivers:
            self.assertTrue(hasattr(shim, driver), driver)


class TestSources(base.BaseTestCase):

    def test_licence(self):
        without = [path for path in python_files() if LICENCE not in
                   path.read_text(encoding='utf-8')[:300]]
        self.assertEqual([], without)

    def test_modules_say_what_they_are(self):
        without = [
            path for path in python_files()
            if path.is_relative_to(TOP / 'gpgpu_plugin')
            and path.name != '__init__.py'
            and not ast.get_docstring(
                ast.parse(path.read_text(encoding='utf-8')))]
        self.assertEqual([], without)


class TestDocumentation(base.BaseTestCase):

    def test_states(self):
        """The table of states in the documentation is the code's."""
        rows = re.findall(
            r'^   \* - ``(\w+)``\n     - ``(\w+)``\n     - ``(\w+)``$',
            doc('contributor/states.rst'), re.MULTILINE)
        self.assertEqual(
            {(str(state), str(event), str(after)) for (state, event), after
             in device_rules.TRANSITIONS.items()}, set(rows))
        self.assertEqual(len(rows), len(set(rows)))

    def test_reasons(self):
        """Each refusal has its own section, and no other has one."""
        sections = re.findall(
            r'^``(\w+)``\n=+$', doc('admin/refusals.rst'),
            re.MULTILINE)
        self.assertEqual(sorted(request.Reason), sorted(sections))

    def test_extra_specs(self):
        """Each key and each of its values is in the flavors' page."""
        page = doc('admin/flavors.rst')
        for key, values in request.EXTRA_SPECS.items():
            self.assertIn(f'``{key}``', page)
            for value in values:
                self.assertIn(f'``{value}``', page)

    def test_commands(self):
        """Each command is in the operators' tour."""
        page = doc('admin/operations.rst')
        for program in commands.PROGRAMS:
            for name, _ in commands.CommandManager(program):
                self.assertRegex(page, rf'{program} {name}\b')
