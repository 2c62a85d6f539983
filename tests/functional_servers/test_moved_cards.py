# SPDX-License-Identifier: Apache-2.0
"""Tests of moved cards: hosts that report one number at once, on servers."""

import concurrent.futures
import threading

from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import api
from gpgpu_plugin.db import limits
from tests.fixtures import database
from tests.fixtures import hosts
from tests.fixtures import services
from tests.unit.conductor import base
from tests.unit.conductor import test_moved_cards

GPUS = [base.function(number) for number in range(4)]
HOSTS = ('h2', 'h3', 'h4', 'h5')


class PostgreSQLTest(test_moved_cards.MovedCase):

    server = services.POSTGRESQL
    functions = tuple(GPUS)

    def setUp(self):
        services.require(self, self.server)
        super().setUp()
        for host in HOSTS:
            hosts.begin(self.db, host, base.node_uuid(host))

    def database(self):
        self.made = database.ServerDatabase(
            self.conf, self.server, content=self.content)
        return self.made

    def report_at_once(self):
        """Have each host report the cards by a conductor of its own."""
        started = threading.Barrier(len(HOSTS))

        def report(host):
            db = api.Database(
                self.conf, self.made.connection, limits.Limits(60))
            try:
                started.wait(60)
                for number in (1, 2):
                    reports.report(db, base.scan(
                        GPUS, host=host, number=number,
                        node_uuid=base.node_uuid(host)))
            finally:
                db.engine.dispose()
        with concurrent.futures.ThreadPoolExecutor(len(HOSTS)) as pool:
            for done in [pool.submit(report, host) for host in HOSTS]:
                done.result()

    def all_states(self):
        return {state for host in host_admin.list_all(self.db)
                if host.host in HOSTS for state in host.devices}

    def test_card_that_several_hosts_report_at_once_is_cleaned_by_each(self):
        self.use_all()
        self.switch_off()
        self.report_at_once()
        self.assertEqual({'dirty'}, self.all_states())

    def test_card_of_a_deleted_host_is_cleaned_by_each(self):
        self.use_all()
        self.switch_off()
        host_admin.delete(self.db, 'h1', force=True)
        self.report_at_once()
        self.assertEqual({'dirty'}, self.all_states())

    def use_all(self):
        test_moved_cards.releases.release(
            self.db, base.uuids(self.boot(len(GPUS))))


class MariaDBTest(PostgreSQLTest):

    server = services.MARIADB
