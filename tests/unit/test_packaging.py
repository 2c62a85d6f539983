# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts, debian/ and the container file, which are not run here."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from oslotest import base

from gpgpu_plugin import version
from tests.unit import test_meta

DEBIAN = test_meta.TOP / 'debian'
CONTAINER = test_meta.TOP / 'contrib' / 'container' / 'Containerfile'
UNIT = test_meta.TOP / 'etc' / 'systemd' / 'gpgpu-conductor.service'


def programs() -> set[str]:
    return {name for group, name, _ in test_meta.entry_points()
            if group == 'console_scripts'}


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the container file with their arguments."""
    lines = [line for line in CONTAINER.read_text().splitlines()
             if line and not line.startswith('#')]
    joined = re.sub(r'\\\n *', '', '\n'.join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines()]


def lint(name: str, *files: str) -> str:
    """Return what a linter of the extra "lint" prints about files."""
    folder = pathlib.Path(sys.executable).parent
    program = shutil.which(name, path=f'{folder}{os.pathsep}'
                                      f'{os.environ["PATH"]}')
    assert program, f'{name} is not installed'
    return subprocess.run(
        [program, *files], cwd=test_meta.TOP, capture_output=True, text=True,
        check=False).stdout


class LintTest(base.BaseTestCase):

    def test_scripts_pass_shellcheck(self):
        self.assertEqual('', lint(
            'shellcheck', '-x', 'devstack/plugin.sh', 'devstack/settings',
            *(f'.ci/{name}' for name in ('install', 'lab-packages', 'run')),
            *(str(path) for path in sorted(
                (test_meta.TOP / 'debian').glob('*.post*')))))

    def test_container_file_passes_hadolint(self):
        self.assertEqual('', lint(
            'hadolint', str(CONTAINER.relative_to(test_meta.TOP))))


class DebianTest(base.BaseTestCase):

    def test_version_is_that_of_the_plugin(self):
        first = (DEBIAN / 'changelog').read_text().splitlines()[0]
        self.assertIn(f'({version.VERSION})', first)

    def test_links_are_programs_and_have_that_of_the_unit(self):
        links = [line.split() for line in (
            DEBIAN / 'gpgpu-conductor.links').read_text().splitlines()]
        self.assertLessEqual(
            {target.rpartition('/')[2] for target, _ in links}, programs())
        [command] = re.findall(r'(?m)^ExecStart=/(\S+)', UNIT.read_text())
        self.assertIn(command, [link for _, link in links])

    def test_user_and_folders_are_those_of_the_unit(self):
        script = (DEBIAN / 'gpgpu-conductor.postinst').read_text()
        unit = UNIT.read_text()
        for words in ('User=gpgpu', 'Group=gpgpu', 'StateDirectory=gpgpu',
                      'StateDirectoryMode=0750', 'LogsDirectory=gpgpu',
                      'ConfigurationDirectoryMode=0755'):
            self.assertIn(f'{words}\n', unit)
        for mode, folders in (
                ('0755', '/etc/gpgpu /etc/gpgpu/keys'),
                ('0750 -o gpgpu -g gpgpu', '/var/lib/gpgpu /var/log/gpgpu')):
            # Those that exist keep what the operator changed.
            self.assertIn(
                f'    for folder in {folders}; do\n'
                f'        [ -d "$folder" ] || install -d -m {mode} "$folder"'
                f'\n', script)

    def test_manual_pages_are_built_with_the_extra_of_the_documentation(self):
        rules = (DEBIAN / 'rules').read_text()
        [needed] = re.findall(r'(?m)^sphinx := (.+)$', rules)
        self.assertEqual(
            test_meta.setup_cfg()['options.extras_require']['docs'].split(),
            shlex.split(needed))

    def test_package_has_completion_and_a_page_of_each_program(self):
        rules = (DEBIAN / 'rules').read_text()
        self.assertIn('share/bash-completion/completions\n', rules)
        self.assertIn('gpgpu_plugin.cmd.manage complete', rules)
        [pages] = re.findall(r'dh_installman [^\\]+\\\n\t\t(.+)\)', rules)
        links = (DEBIAN / 'gpgpu-conductor.links').read_text()
        self.assertEqual(
            set(re.findall(r'/usr/bin/(\S+)|usr/bin/(\S+)$', links, re.M)),
            {('', name) for name in pages.split()})

    def test_scripts_make_no_secret(self):
        for path in DEBIAN.glob('*.post*'):
            self.assertNotIn('gpgpu-manage', path.read_text())


class ContainerTest(base.BaseTestCase):

    def last(self, name):
        return [rest for found, rest in instructions() if found == name][-1]

    def test_programs_run_without_a_shell(self):
        """Signals reach the program, and its exit code is the container's."""
        check = self.last('HEALTHCHECK').partition('CMD ')[2]
        for command in (json.loads(self.last('CMD')), json.loads(check)):
            self.assertIn(command[0], programs())
        self.assertEqual('SIGTERM', self.last('STOPSIGNAL'))

    def test_last_user_is_a_number_and_not_root(self):
        user, _, group = self.last('USER').partition(':')
        self.assertGreater(int(user), 0)
        [making] = [rest for _, rest in instructions() if 'useradd' in rest]
        self.assertIn(f'--uid {user}', making)
        self.assertIn(f'--gid {group}', making)

    def test_image_gets_no_configuration_and_no_key(self):
        for name, rest in instructions():
            self.assertNotIn('gpgpu-manage key', rest)
            if name == 'COPY':
                self.assertIn(rest, (
                    '. /src', '--from=build /opt/gpgpu /opt/gpgpu'))
        # The context goes into the first stage, which is thrown away.
        self.assertEqual(2, len([1 for name, _ in instructions()
                                 if name == 'FROM']))

    def test_installed_extras_exist(self):
        [install] = [rest for _, rest in instructions()
                     if 'pip install' in rest]
        [extras] = re.findall(r'\[(.+)\]', shlex.split(install)[-1])
        self.assertLessEqual(set(extras.split(',')), set(
            test_meta.setup_cfg()['options.extras_require']))

    def test_what_git_ignores_does_not_go_into_the_context(self):
        ignored = (test_meta.TOP / '.dockerignore').read_text().split()
        for name in ('.git', '.tox', '.venv', 'build', 'dist'):
            self.assertIn(name, ignored)
