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
"""Migrations on PostgreSQL and MariaDB, whose lock MariaDB has once."""

from tests.functional_db import test_database
from tests.unit.conductor import base
from tests.unit.db import test_migration


class PostgreSQLMigration(test_database.PostgreSQLMixin,
                          test_migration.MigrationMixin,
                          base.ConductorTestCase):

    functions = ()
    variant = False


class MariaDBMigration(test_database.MariaDBMixin,
                       test_migration.MigrationMixin,
                       base.ConductorTestCase):

    functions = ()
    variant = False
