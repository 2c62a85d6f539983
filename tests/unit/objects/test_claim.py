# SPDX-License-Identifier: Apache-2.0
"""Tests of claims on the wire: role and migration belong together."""

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import codec
from tests.fixtures import tenant


class ClaimRequestTest(base.BaseTestCase):

    def make(self, **values):
        return claim.ClaimRequest(
            **tenant.TENANT,
            instance_uuid='i1', host='h1', request=request.Request(),
            **values)

    def test_request_is_the_instances_unless_a_migration_is_named(self):
        self.assertEqual((claim.ClaimRole.INSTANCE, None), (
            self.make().role, self.make().migration_uuid))
        self.assertEqual('m1', self.make(
            role=claim.ClaimRole.DESTINATION,
            migration_uuid='m1').migration_uuid)

    def test_role_without_its_migration_is_refused(self):
        for role, migration in (('destination', None), ('destination', ''),
                                ('instance', 'm1')):
            with self.subTest(role=role, migration=migration):
                exc = self.assertRaises(
                    exception.Invalid, self.make,
                    role=claim.ClaimRole(role), migration_uuid=migration)
                self.assertEqual('migration_uuid', exc.kwargs['field'])

    def test_role_without_its_migration_is_refused_on_arrival(self):
        for role, migration in (('destination', None), ('instance', 'm1')):
            primitive = {**codec.to_primitive(self.make()), 'role': role,
                         'migration_uuid': migration}
            exc = self.assertRaises(
                exception.Invalid, codec.from_primitive, claim.ClaimRequest,
                primitive)
            self.assertIn('migration_uuid', str(exc))
