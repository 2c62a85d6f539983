#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Tests of the usage that outlives assignments."""

import sqlalchemy as sa

from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import models
from gpgpu_plugin.db import usage
from tests.unit.conductor import base


class UsageTest(base.ConductorTestCase):

    def used(self):
        with self.db.reader() as session:
            return [dict(row) for row in session.execute(
                sa.select(models.Usage.__table__)).mappings()]

    def keep(self):
        with self.db.writer() as session:
            usage.keep(session, sa.true())

    def test_usage_says_who_had_which_device_and_when(self):
        [assignment] = self.boot(1).assignments
        releases.release(self.db, [assignment.uuid])
        with self.db.reader() as session:
            row = session.scalars(sa.select(models.Assignment)).one()
        self.keep()
        [found] = self.used()
        self.assertEqual({
            'id': found['id'], 'assignment_uuid': assignment.uuid,
            'instance_uuid': 'i1', 'role': 'instance',
            'project_id': row.project_id, 'user_id': row.user_id,
            'host': 'h1', 'variant': 'H100', 'vgpu_type': 'passthrough',
            'resource_class': 'CUSTOM_GPU_H100',
            'began_at': row.claimed_at, 'ended_at': row.ended_at}, found)

    def test_active_assignment_is_no_usage_yet(self):
        self.boot(1)
        self.keep()
        self.assertEqual([], self.used())

    def test_usage_survives_host_and_variant(self):
        releases.release(self.db, base.uuids(self.boot(2)))
        variant_admin.delete(self.db, 'H100')
        host_admin.delete(self.db, 'h1', force=True)
        self.assertEqual(
            [('h1', None, 'CUSTOM_GPU_H100')] * 2,
            [(row['host'], row['variant'], row['resource_class'])
             for row in self.used()])
