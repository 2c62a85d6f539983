# SPDX-License-Identifier: Apache-2.0
"""Tests that bindep.txt has the packages that scripts install."""

import re
import subprocess

from oslotest import base

from tests.unit import test_meta

_LINE = re.compile(r'([a-z0-9.+-]+) \[((?:platform:\w+ ?)+)([\w-]*)\]')
_PROFILES = {'', 'compute', 'doc', 'test', 'test-deb', 'test-lab',
             'test-servers'}


def packages() -> dict[str, list[str]]:
    """Return the packages by profile; '' for those of each machine."""
    found: dict[str, list[str]] = {}
    for line in (test_meta.TOP / 'bindep.txt').read_text().splitlines():
        if line and not line.startswith('#'):
            match = _LINE.fullmatch(line)
            assert match, line
            found.setdefault(match[3], []).append(match[1])
    return found


def script(name: str) -> str:
    return (test_meta.TOP / '.ci' / name).read_text()


class BindepTest(base.BaseTestCase):

    def test_profiles_are_those_of_the_documentation(self):
        self.assertEqual(_PROFILES, packages().keys())
        page = test_meta.doc('contributor/testing.rst')
        for profile in _PROFILES - {'', 'compute'}:
            self.assertIn(f'``{profile}``', page)

    def test_packages_of_a_profile_are_sorted_and_unique(self):
        for profile, names in packages().items():
            self.assertEqual(sorted(set(names)), names, profile)

    def test_lab_packages_reads_the_profiles_of_lab_and_package(self):
        [reading] = re.findall(
            r'mapfile -t packages < <\(.+?\n.+\n', script('lab-packages'))
        done = subprocess.run(
            ['bash', '-c', f'set -eu\n{reading}\n'
                           f'printf "%s\\n" "${{packages[@]}}"',
             ], env={'BASH_SOURCE': 'x', 'PATH': '/usr/bin:/bin'},
            cwd=test_meta.TOP / '.ci', capture_output=True, text=True,
            check=True)
        self.assertEqual(packages()['test-lab'] + packages()['test-deb'],
                         done.stdout.split())

    def test_services_installs_the_profile_of_the_servers(self):
        self.assertEqual(
            packages()['test-servers'],
            sorted(re.findall(r'(?m)^ *ensure ([a-z-]+) ',
                              script('services'))))

    def test_package_needs_what_it_is_built_with(self):
        control = (test_meta.TOP / 'debian' / 'control').read_text()
        for name in packages()['test-deb']:
            if name != 'dpkg-dev':
                self.assertIn(f'{name}', control)
