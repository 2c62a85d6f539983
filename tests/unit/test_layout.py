# SPDX-License-Identifier: Apache-2.0
"""Tests that the unit tests mirror the package's modules."""

from __future__ import annotations

import pathlib

from oslotest import base

TOP = pathlib.Path(__file__).parents[2]
PACKAGE = TOP / 'gpgpu_plugin'
TESTS = TOP / 'tests' / 'unit'

_OPTIONS = 'test_meta.py holds what every option keeps to'
_CONTRACT = ('rpc/test_contract.py and rpc/test_conductor_api.py hold both '
             'ends to it')
_VALUES = ('values without behaviour, which objects/test_codec.py and '
           'conductor/test_manager.py take across RPC')
_MIGRATION = 'db/test_migration.py runs it'

# Modules without a test of their name, and where they are tested instead.
ELSEWHERE = {
    'compute/host.py': 'a value that joins others, each with a test',
    'conf/gpgpu.py': _OPTIONS,
    'conductor/isolation_cloud.py': 'functional/test_isolation.py calls all '
                                    'of it',
    'conductor/endpoint.py': 'a base class; conductor/test_manager.py '
                             'creates its subclass',
    'conductor/operator_calls.py': 'conductor/test_manager.py calls each '
                                   'method',
    'conductor/selection.py': 'conductor/test_claims.py and others '
                              'select devices through it',
    'db/caller_key.py': 'conductor/test_caller_keys.py and cmd/test_key.py '
                        'call all of it',
    'db/sighting.py': 'conductor/test_sightings.py calls all of it',
    'cmd/cloud.py': 'cmd/test_doctor.py and cmd/test_why_not.py call all of '
                    'it',
    'cmd/why_not_cloud.py': 'cmd/test_why_not.py and cmd/test_what_if.py call '
                            'all of it',
    'cmd/database.py': 'cmd/test_db.py and cmd/test_key.py use it',
    'domain/weighing/policies.py': 'constants; scheduler_weights/'
                                   'test_ranking.py goes by them',
    'db/column.py': 'constants; db/test_schema.py checks the columns',
    'db/tables.py': 'db/test_schema.py checks the tables',
    'db/migrations/env.py': _MIGRATION,
    'db/migrations/versions/v0001_initial.py': _MIGRATION,
    'host/guest.py': 'a contract and values; host/cleaning/'
                     'test_scrub_guest.py and virt/test_scrub_guest.py '
                     'use all of it',
    'objects/admin.py': _VALUES,
    'objects/event.py': _VALUES,
    'objects/inventory.py': _VALUES,
    'objects/report.py': _VALUES,
    'objects/usage.py': _VALUES,
    'objects/what_if.py': _VALUES,
    'objects/why_not.py': _VALUES,
    'rpc/conductor_client.py': 'rpc/test_conductor_api.py calls through it',
    'rpc/conductor_contract.py': _CONTRACT,
    'rpc/device_contract.py': _CONTRACT,
    'rpc/doctor_contract.py': _CONTRACT,
    'rpc/history_contract.py': _CONTRACT,
    'rpc/operator_contract.py': _CONTRACT,
    'rpc/why_not_contract.py': _CONTRACT,
    'version.py': 'a constant',
    'virt/fake.py': 'an attribute; functional tests run nova-compute with it',
    'virt/mixin.py': 'a class that joins three others, each with a test',
}


def modules() -> set[str]:
    """Return the package's modules, by their path in it."""
    return {str(path.relative_to(PACKAGE))
            for path in PACKAGE.rglob('*.py') if path.name != '__init__.py'}


def test_of(module: str) -> pathlib.Path:
    """Return where the tests of a module belong."""
    path = pathlib.Path(module)
    return TESTS / path.parent / f'test_{path.name}'


class MirrorTest(base.BaseTestCase):

    def test_every_module_has_a_test_of_its_name(self) -> None:
        self.assertIn('conductor/claims.py', modules())
        self.assertEqual([], sorted(
            module for module in modules() - ELSEWHERE.keys()
            if not test_of(module).exists()))

    def test_exception_is_a_module_without_a_test_of_its_name(self) -> None:
        self.assertEqual(set(), ELSEWHERE.keys() - modules())
        self.assertEqual([], [
            module for module in ELSEWHERE if test_of(module).exists()])

    def test_folder_of_tests_is_a_folder_of_the_package(self) -> None:
        self.assertEqual([], sorted(
            str(path.relative_to(TESTS)) for path in TESTS.rglob('__init__.py')
            if not (PACKAGE / path.relative_to(TESTS)).exists()))
