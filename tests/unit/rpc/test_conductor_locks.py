# SPDX-License-Identifier: Apache-2.0
"""Tests of which calls may wait for a lock."""

import inspect

from oslotest import base

from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract

ARGUMENTS = {
    'origin': {'host': 'h1'}, 'request': {'host': 'h1'}, 'host': 'h1'}
WITHOUT = {
    'digest', 'host_inventory', 'host_assignments', 'instance_assignments',
    'clean_tasks', 'clean_failure', 'vfs_refused', 'changes_since',
    'variant_preview', 'variant_list', 'variant_show', 'vgpu_type_list',
    'host_list', 'hold_list',
    'host_show', 'group_list', 'assignment_list', 'device_list',
    'device_show', 'device_history', 'device_ledger_head', 'usage_list',
    'usage_summary', 'usage_unexported', 'event_list', 'exact_host',
    'chosen', 'why_not', 'scheduler_view', 'what_if_leaving', 'what_if_drain',
    'examine_cloud', 'examine_database', 'examine_hosts', 'answer'}


class KeyTest(base.BaseTestCase):

    def test_all_calls_that_wait_for_a_lock_have_a_key(self):
        methods = contract.methods(conductor_contract.Conductor)
        self.assertEqual(
            WITHOUT, {name for name in methods
                    if conductor_client.lock_key(name, ARGUMENTS) is None})

    def test_call_that_names_its_host_has_its_key(self):
        for name, method in contract.methods(
                conductor_contract.Conductor).items():
            if 'origin' in inspect.signature(method).parameters:
                self.assertIn(conductor_client.lock_key(name, ARGUMENTS),
                              {'h1', None}, name)
        self.assertEqual('h1', conductor_client.lock_key(
            'begin_session', ARGUMENTS))
        self.assertEqual('h1',
                         conductor_client.lock_key('host_delete', ARGUMENTS))

    def test_call_that_names_no_host_has_the_key_of_all(self):
        self.assertEqual(conductor_client.HOSTS, conductor_client.lock_key(
            'variant_create', {'variant': {}}))

    def test_call_for_all_hosts_has_the_key_of_all(self):
        for host, key in (('h1', 'h1'), (None, conductor_client.HOSTS)):
            self.assertEqual(key, conductor_client.lock_key(
                'group_set', {'host': host}))

    def test_malformed_and_unknown_calls_have_none(self):
        for method, arguments in (
                ('claim', {}), ('claim', {'origin': None}), ('ping', {})):
            self.assertIsNone(conductor_client.lock_key(method, arguments))

    def test_methods_that_are_repeated_exist(self):
        self.assertLessEqual(
            conductor_client.REPEATED,
            contract.methods(conductor_contract.Conductor).keys())
