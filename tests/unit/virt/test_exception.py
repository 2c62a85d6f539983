# SPDX-License-Identifier: Apache-2.0
"""Tests of the errors that the plugin raises into Nova."""

import re
import string
import types

import fixtures
from nova import exception as nova_exception
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.virt import denial
from gpgpu_plugin.virt import exception as virt_exception

_B = virt_exception.Build


def _errors(of=exception.GPUPluginException):
    """Yield an error of each class that may name a host; all fields do.

    The fields of Invalid are what the flavor or the user requests.
    """
    if issubclass(of, exception.Invalid):
        return
    fields = {name for _, name, _, _ in string.Formatter().parse(
        re.sub(r'%\((\w+)\)[^s]*[srd]', r'{\1}', of.msg_fmt)) if name}
    # There may be classes of errors from RPC, too.
    known = {'instance': 'i', 'reason': 'not_enough_available'} if issubclass(
        of, exception.ClaimDenied) else {'remedy': 'do it again'}
    yield of(**{name: known.get(name, 'SECRET') for name in fields})
    for child in of.__subclasses__():
        yield from _errors(child)


class TranslatedTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MockPatchObject(denial, 'record'))

    def raised(self, exc, build, expected):
        """Return the error that Nova sees, of the expected class."""
        def fail():
            with (virt_exception.explained(types.SimpleNamespace(uuid='i'))
                  if build == 'explained' else
                  denial.translated(
                      types.SimpleNamespace(request_id='r1'),
                      types.SimpleNamespace(uuid='i'), 'h', build)):
                raise exc
        return self.assertRaises(expected, fail)

    def test_denied_build_goes_to_the_next_host(self):
        # Nova reschedules on this class without counting a failed build.
        self.assertTrue(issubclass(
            virt_exception.GPUClaimDenied,
            nova_exception.GroupAffinityViolation))
        self.assertEqual('no_such_group (none)', str(
            virt_exception.GPUClaimDenied(reason='no_such_group (none)')))

    def test_class_follows_from_error_and_build(self):
        denied = exception.ClaimDenied(
            instance='i', host='h', reason='no_such_group', detail='x')
        invalid = exception.Invalid(field='f', value='v', expected='e')
        broken = exception.HostError(path='/sys/x', reason='gone')
        for exc, build, expected in (
                (denied, _B.NEW, virt_exception.GPUClaimDenied),
                (denied, _B.REBUILD, virt_exception.GPUClaimDenied),
                (denied, _B.EVACUATION,
                 nova_exception.ComputeResourcesUnavailable),
                (invalid, _B.NEW, virt_exception.GPUClaimDenied),
                (invalid, _B.EVACUATION,
                 nova_exception.ComputeResourcesUnavailable),
                (broken, _B.NEW, nova_exception.ComputeResourcesUnavailable),
                # The guest is gone already.
                (broken, _B.REBUILD, nova_exception.InstanceDeployFailure),
                (broken, _B.EVACUATION,
                 nova_exception.ComputeResourcesUnavailable)):
            with self.subTest(exc=type(exc).__name__, build=build):
                self.assertIs(expected, type(
                    self.raised(exc, build, expected)))

    def test_reason_of_a_denial_has_no_remote_traceback(self):
        exc = exception.ClaimDenied(
            'message\nTraceback (most recent call last)', instance='i',
            host='h', reason='no_such_group', detail='x')
        self.assertEqual('Claim of i on h denied: no_such_group (x)',
                         virt_exception.reason(exc))

    def test_wrong_extra_spec_is_named(self):
        exc = exception.Invalid(field='gpgpu:x', value='v', expected='e')
        self.assertEqual(
            f'extra_spec_invalid: {exc}',
            str(self.raised(exc, _B.NEW, virt_exception.GPUClaimDenied)))

    def test_tenants_read_no_host_path_or_capacity(self):
        errors = list(_errors())
        self.assertGreater(len(errors), 20)
        for error in errors:
            for by in (*_B, 'explained'):
                with self.subTest(error=type(error).__name__, by=by):
                    raised = self.raised(
                        error, by, nova_exception.NovaException)
                    self.assertNotIn('SECRET', str(raised))
                    self.assertNotIn('SECRET', virt_exception.public(error))
        self.assertNotIn('SECRET', virt_exception.public(OSError('SECRET')))

    def test_error_of_somebody_else_is_raised_as_it_is(self):
        exc = ValueError('x')
        self.assertIs(exc, self.raised(exc, _B.NEW, ValueError))
