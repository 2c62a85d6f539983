# SPDX-License-Identifier: Apache-2.0
"""Tests of who the events of a call name as its author."""

import uuid

from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin.conductor import callers

REQUEST = f'req-{uuid.uuid4()}'


class AuthorsTest(base.BaseTestCase):

    def ctxt(self, kind=None, name='', **kwargs):
        """Return the context of a call, signed by a key of a kind."""
        ctxt = context.RequestContext(
            overwrite=False, global_request_id=REQUEST, **kwargs)
        if kind is not None:
            ctxt.caller = context.Caller(
                kind=kind, name=name, number=1, answer_mac=str)
        return ctxt

    def test_host_is_named(self):
        found = callers.host_author(self.ctxt(), 'h1')
        self.assertEqual(('host h1', REQUEST),
                         (found.actor, found.request_id))

    def test_operator_is_named_with_the_key_that_proves_it(self):
        kind = context.CallerKind.OPERATOR
        said = self.ctxt().of_actor('root@control')
        signed = self.ctxt(kind, 'desk').of_actor('root@control')
        for ctxt, expected in (
                (self.ctxt(), 'operator unknown'),
                (said, 'operator root@control'),
                (signed, 'operator root@control (key of operator desk)')):
            self.assertEqual(expected, callers.operator_author(ctxt).actor)

    def test_scheduler_is_that_of_the_key_or_what_it_says(self):
        self.assertEqual('scheduler c1', callers.scheduler_author(
            self.ctxt().of_actor('c1')).actor)
        self.assertEqual('scheduler s1', callers.scheduler_author(self.ctxt(
            context.CallerKind.SCHEDULER, 's1').of_actor('c1')).actor)

    def test_without_a_users_request_the_id_is_that_of_the_call(self):
        ctxt = context.admin()
        self.assertEqual(
            ctxt.request_id, callers.host_author(ctxt, 'h1').request_id)
