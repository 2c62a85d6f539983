# SPDX-License-Identifier: Apache-2.0
"""Tests of the imports of each command.

Each library of SLOW takes a tenth of a second or more, and some are not
wanted on a host that has nothing but the plugin.
"""

import collections
import json
import subprocess
import sys
from collections.abc import Iterable

from oslotest import base

from gpgpu_plugin.cmd import commands

SLOW = frozenset({
    'alembic', 'eventlet', 'keystoneauth1', 'libvirt', 'nova', 'openstack',
    'oslo_config', 'oslo_db', 'oslo_messaging', 'oslo_privsep', 'placement',
    'sqlalchemy'})

# futurist, of oslo.messaging and oslo.privsep, imports eventlet wherever it
# is installed, as beside Nova.
RPC = frozenset({'eventlet', 'oslo_config', 'oslo_messaging'})
IMPORTS = {
    'assignment': RPC,
    'attention': RPC,
    'complete': set(),
    'conductor_ping': RPC,
    'db': {'alembic', 'oslo_config', 'oslo_db', 'sqlalchemy'},
    'designation': {'eventlet', 'oslo_config', 'oslo_privsep'},
    'device': RPC,
    'event': RPC,
    'doctor': RPC | {'keystoneauth1', 'openstack'},
    'flavor': RPC | {'keystoneauth1', 'openstack'},
    'group': RPC,
    'host': RPC,
    'key': RPC | {'alembic', 'oslo_db', 'sqlalchemy'},
    'map': RPC,
    'pci': set(),
    'usage': RPC,
    'variant': RPC,
    'vgpu_type': RPC,
    'what_if': RPC | {'keystoneauth1', 'openstack'},
    'why_not': RPC | {'keystoneauth1', 'openstack'},
}

REPORT = """
import json
import sys
print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})),
      file=sys.stderr)
"""

FORKS = """
import importlib
import os
import sys
import gpgpu_plugin.cmd.manage

def within_fork(work):
    sys.stderr.flush()
    if os.fork() == 0:
        work()
        sys.stderr.flush()
        os._exit(0)
    os.wait()

def group(names):
    for name in names:
        within_fork(lambda: report(name))
        # Its libraries are those of the others.
        importlib.import_module(name)

def report(name):
    importlib.import_module(name)
    print('LOADED', name, *{part.partition('.')[0] for part in sys.modules},
          file=sys.stderr)

for names in GROUPS:
    within_fork(lambda: group(names))
"""
"""Imports each module in a fork; a library is imported once a group."""


def imported(program: str) -> set[str]:
    """Return the slow packages that a program loads."""
    done = subprocess.run(
        [sys.executable, '-c', program + REPORT], check=True,
        capture_output=True, timeout=300)
    return SLOW & set(json.loads(done.stderr.splitlines()[-1]))


def imported_by_modules(modules: Iterable[str]) -> dict[str, set[str]]:
    """Return the slow packages that each of some modules loads.

    Of those that are expected to load the same, each may load what the first
    one does.
    """
    groups = collections.defaultdict(list)
    for module in sorted(modules):
        groups[frozenset(IMPORTS[module.rpartition('.')[2]])].append(module)
    done = subprocess.run(
        [sys.executable, '-c', f'GROUPS = {list(groups.values())}\n{FORKS}'],
        check=True, capture_output=True, text=True, timeout=300)
    found = {}
    for line in done.stderr.splitlines():
        # Libraries print warnings.
        if line.startswith('LOADED '):
            _, name, *packages = line.split()
            found[name] = SLOW.intersection(packages)
    return found


class ImportsTest(base.BaseTestCase):

    def test_module_of_a_command_imports_only_what_it_needs(self):
        modules = {entry_point.module for program in commands.PROGRAMS
                   for _, entry_point in commands.CommandManager(program)}
        expected = {f'gpgpu_plugin.cmd.{name}': set(names)
                    for name, names in IMPORTS.items()}
        self.assertEqual(expected.keys(), modules)
        self.assertEqual(expected, imported_by_modules(modules))

    def test_run_without_services_imports_nothing_slow(self):
        for arguments in (['list', '--machine', 'nvidia-t4-2'],
                          ['help', 'list'], ['nonsense']):
            self.assertEqual(set(), imported(
                'from gpgpu_plugin.cmd import manage\n'
                f'manage.run({arguments!r}, program=manage.HostApp)'),
                arguments)

    def test_version_imports_nothing_slow(self):
        self.assertEqual(set(), imported(
            'from gpgpu_plugin.cmd import manage\n'
            'assert manage.run(["--version"]) == 0'))

    def test_conductor_imports_openstacksdk_for_an_aggregate_only(self):
        self.assertEqual(set(), {'keystoneauth1', 'openstack'} & imported(
            'from gpgpu_plugin.cmd import conductor\n'))
