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
"""What a claim must cost at least: bare SQL, without decisions or messages."""

from __future__ import annotations

import time
import uuid

import sqlalchemy as sa

from bench import cpu
from bench import race

_STATEMENTS = (
    'SELECT id, generation FROM hosts WHERE name = %(host)s FOR UPDATE',
    '''UPDATE devices SET state = 'provisioning', generation = generation + 1
       WHERE id = (SELECT id FROM devices
                   WHERE host_id = (SELECT id FROM hosts
                                    WHERE name = %(host)s)
                     AND state = 'available' LIMIT 1)''',
    '''INSERT INTO assignments (uuid, device_id, host_id, instance_uuid, role,
           migration_uuid, ordinal, vgpu_type, resource_class, request,
           allocated, host_generation, active, claimed_at)
       SELECT %(uuid)s, id, host_id, %(uuid)s, 'instance', '', 0,
              'passthrough', 'CUSTOM_GPU', '', false, 1, 1, now()
       FROM devices
       WHERE host_id = (SELECT id FROM hosts WHERE name = %(host)s)
         AND state = 'provisioning'
         AND id NOT IN (SELECT device_id FROM assignments)
       LIMIT 1''',
    '''UPDATE hosts SET generation = generation + 1 WHERE name = %(host)s''')


def bare_claims(url: str, hosts: int, devices: int) -> cpu.Seconds:
    """Claim all devices, on one connection; return the CPU seconds.

    Each is a transaction of four statements: lock the host, take a device,
    store who has it, and say that the host changed.

    :param url: SQLAlchemy URL of an empty database of PostgreSQL
    """
    race.set_up(race.Setting(
        database=url, transport='fake:/', hosts=hosts, devices=devices))
    engine = sa.create_engine(url)
    connection = engine.raw_connection()
    before, began = cpu.of_database(url), time.process_time()
    cursor = connection.cursor()
    for number in range(hosts * devices):
        for statement in _STATEMENTS:
            cursor.execute(statement, {
                'host': f'h{number % hosts}', 'uuid': str(uuid.uuid4())})
        connection.commit()
    used = {'driver': time.process_time() - began,
            'database': cpu.of_database(url) - before}
    connection.close()
    engine.dispose()
    return used
