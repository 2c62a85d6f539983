# SPDX-License-Identifier: Apache-2.0
"""Minimal claims, which show what messages, queries and clients cost.

Conductors of a race call them instead of ``conductor.claims.claim``.
"""

from __future__ import annotations

import typing
import uuid

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory
from tests.fixtures import tenant

_TAKE = sa.text('''
    WITH device AS (
        UPDATE devices SET state = 'provisioning' WHERE id = (
            SELECT free.id FROM devices free
            JOIN hosts ON free.host_id = hosts.id
            WHERE hosts.name = :host AND free.state = 'available'
            LIMIT 1 FOR UPDATE OF free SKIP LOCKED)
        RETURNING id, uuid, host_id, stable_id, address),
    host AS (
        UPDATE hosts SET generation = generation + 1,
            changed_at = extract(epoch FROM clock_timestamp())
        WHERE id = (SELECT host_id FROM device)
        RETURNING node_uuid, generation),
    assignment AS (
        INSERT INTO assignments (
            uuid, device_id, host_id, instance_uuid, role, migration_uuid,
            ordinal, active, vgpu_type, resource_class, request, allocated,
            project_id, user_id, flavor, claimed_at, host_generation, exact)
        SELECT :uuid, id, host_id, :instance, 'instance', '', 0, 1,
            'passthrough', :resource_class, '{}', false, 'p', 'u', 'f',
            CURRENT_TIMESTAMP, 0, false FROM device)
    SELECT device.uuid, device.stable_id, device.address, host.node_uuid,
        host.generation FROM device, host''')


def refuse(db: api.Database, asked: claim_obj.ClaimRequest,
           *_: object) -> typing.NoReturn:
    """Refuse without reading the database."""
    raise exception.ClaimDenied(
        instance=asked.instance_uuid, host=asked.host,
        reason=request.Reason.NOT_ENOUGH_AVAILABLE,
        detail='the benchmark refuses every claim')


def take_any(db: api.Database, asked: claim_obj.ClaimRequest,
             *_: object) -> claim_obj.Claim:
    """Take any available device of a host, in one statement of PostgreSQL.

    No rule is applied, there is no session or lease, no event is written, and
    the answer has no inventory.
    """
    assignment = str(uuid.uuid4())
    resource_class = asked.request.demands[0].resource_class
    with db.engine.connect().execution_options(
            isolation_level='AUTOCOMMIT') as connection:
        taken = connection.execute(_TAKE, {
            'host': asked.host, 'uuid': assignment,
            'instance': asked.instance_uuid,
            'resource_class': resource_class}).first()
    if taken is None:
        refuse(db, asked)
    return claim_obj.Claim(
        assignments=(claim_obj.Assignment(
            uuid=assignment, instance_uuid=asked.instance_uuid,
            host=asked.host, role=claim_obj.ClaimRole.INSTANCE,
            device_uuid=taken.uuid, stable_id=taken.stable_id,
            address=taken.address, variant='', state='provisioning',
            resource_class=resource_class, host_generation=0,
            **tenant.TENANT),),
        inventory=inventory.HostInventory(
            host=asked.host, node_uuid=taken.node_uuid,
            generation=taken.generation))
