# SPDX-License-Identifier: Apache-2.0
"""Tests of who may call which method."""

from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import conductor_contract
from gpgpu_plugin.rpc import contract
from gpgpu_plugin.rpc import guard
from gpgpu_plugin.rpc import ping

Kind = context.CallerKind
METHODS = {**contract.methods(conductor_contract.Conductor),
           **contract.methods(ping.Pinged)}

# What a host may call without naming a host, and why that does no harm.
UNOWNED = {'instance_assignments': 'it reads what one instance has'}


class ContractTest(base.BaseTestCase):

    def test_each_method_says_who_may_call_it(self):
        self.assertEqual([], [name for name, method in METHODS.items()
                              if not guard.caller_rules(method)])

    def test_host_speaks_for_itself_in_all_that_it_may_change(self):
        self.assertEqual(sorted(UNOWNED), sorted(
            name for name, method in METHODS.items()
            if Kind.HOST in guard.caller_rules(method)
            and guard.caller_rules(method)[Kind.HOST].owner is None))

    def test_owner_of_a_method_with_an_origin_is_its_origin(self):
        arguments = {'origin': {'host': 'h1'}, 'request': {'host': 'h1'},
                     'host': 'h1'}
        for name, method in METHODS.items():
            rule = guard.caller_rules(method).get(Kind.HOST)
            if rule is None or name in UNOWNED:
                continue
            with self.subTest(method=name):
                self.assertEqual('h1', guard.host_argument(rule, arguments))
                if 'origin' in method.__annotations__:
                    self.assertEqual('origin.host', rule.owner)

    def test_change_by_an_operator_is_executed_once(self):
        def changes(name):
            return conductor_client.lock_key(name, {'host': 'h1'}) is not None
        for name, method in METHODS.items():
            rule = guard.caller_rules(method).get(Kind.OPERATOR)
            if rule is not None:
                with self.subTest(method=name):
                    self.assertEqual(changes(name), rule.once)


class OwnerTest(base.BaseTestCase):

    def test_owner_that_is_missing_is_nobody(self):
        rule = guard.CallerRule(owner='origin.host')
        for arguments in ({}, {'origin': None}, {'origin': 'h1'},
                          {'origin': {}}, {'host': 'h1'}):
            self.assertIsNone(guard.host_argument(rule, arguments))

    def test_method_may_have_callers_of_two_kinds(self):
        @guard.hosts('host')
        @guard.operators()
        def method(self, ctxt, *, host):
            """Do nothing."""
        self.assertEqual(
            {Kind.HOST: guard.CallerRule(owner='host'),
             Kind.OPERATOR: guard.CallerRule()}, guard.caller_rules(method))
