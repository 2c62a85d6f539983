# SPDX-License-Identifier: Apache-2.0
"""Base classes: a conductor's database with one host, without RPC."""

import contextlib
import dataclasses
import time
import uuid

import sqlalchemy as sa
from oslotest import base

from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group as group_mod
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from tests.fixtures import cleaned
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import database
from tests.fixtures import hosts
from tests.fixtures import reported
from tests.fixtures import tenant


def node_uuid(host):
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, host))


NODE = node_uuid('h1')


def function(number, **facts):
    """Return GPU ``number`` of an eight-GPU machine with two nodes.

    It has two boards of four GPUs, which need no NVSwitches.
    """
    return reported.Reported(**{
        'id': f'/devices/pci0000:0{number}/01.0/00.0',
        'address': f'0000:{number:02x}:00.0', 'vendor': '10de',
        'device': '2330', 'subsystem_vendor': '10de', 'subsystem': '16c1',
        'revision': 'a1', 'class_code': '030200', 'numa_node': number // 4,
        'dsn': f'48-b0-2d-00-00-00-00-{number:02x}', 'nvswitches': 0,
        **facts})


def scan(functions, host='h1', node_uuid=NODE, **fields):
    return reported.host_report(
        functions, host=host, node=host, node_uuid=node_uuid, **fields)


EIGHT = tuple(function(number) for number in range(8))


class Content:
    """The rows that a test begins with: a host, and a variant.

    :param functions: those that the host has reported; none: no host
    :param variant: gpgpu_plugin.objects.admin.VariantInfo, or None
    :param types: names of vGPU types of the variant that are enabled
    :param cleaned_before: whether the functions are clean when first seen
    """

    def __init__(self, functions, variant, types=(), *, cleaned_before=True):
        self.functions = functions
        self.variant = variant
        self.types = types
        self.cleaned_before = cleaned_before
        # By value, since some tests make equal ones for each run. Facts of
        # functions have no hash.
        self.key = (repr(functions), repr(variant), types, cleaned_before)

    def __eq__(self, other):
        return isinstance(other, Content) and self.key == other.key

    def __hash__(self):
        return hash(self.key)

    def __call__(self, db):
        with (cleaned.CleanedBefore() if self.cleaned_before
              else contextlib.nullcontext()):
            self._write(db)

    def _write(self, db):
        if self.variant:
            variant_admin.create(db, self.variant)
        if self.functions:
            hosts.store(db, scan(self.functions))
        for name in self.types:
            group_mod.set_type_enabled(
                db, self.variant.name, name, None, enabled=True,
                caller=variant_sweep.PATIENT)


class ConductorTestCase(base.BaseTestCase):

    functions = EIGHT
    variant = True
    # Whether the functions, and those that come later, are clean when they
    # are first seen.
    cleaned_before = new_are_clean = True
    # Then no later test can use its database again.
    changes_schema = False

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf(
            cleaned_before=self.new_are_clean)).conf
        self.db = self.useFixture(self.database()).db
        if self.functions:
            self.renew()

    def renew(self):
        """Make the host of the content, which may be minutes old, a new one.

        It is silent after some minutes, and schedulers read again what changed
        in the last ones.
        """
        hosts.begin(self.db, 'h1', NODE)
        with self.db.writer() as session:
            session.execute(sa.update(tables.HOSTS).values(
                changed_at=time.time(), heard_at=time.time()))

    def age(self, seconds):
        """Let time pass for leases, and for hosts that do not call."""
        with self.db.writer() as session:
            for column in (tables.HOSTS.c.heard_at,
                           tables.ASSIGNMENTS.c.lease_expires_at):
                session.execute(sa.update(column.table).values(
                    {column: column - seconds}))

    @property
    def content(self):
        return Content(self.functions, admin.VariantInfo(
            name='H100', vendor='10de', device='2330')
            if self.variant else None, cleaned_before=self.cleaned_before)

    def database(self):
        return database.Database(self.conf, content=self.content)

    def report_second_host(self, functions=EIGHT):
        """Report such functions for h2, of cards that were never on h1."""
        hosts.store(self.db, scan(
            [dataclasses.replace(function, dsn=function.dsn and (
                function.dsn.replace('48-b0', '48-b1', 1)))
             for function in functions],
            host='h2', node_uuid=node_uuid('h2')))

    def request(self, count=1, instance='i1', host='h1', allocated=None,
                variant='H100', **kwargs):
        name = naming.resource_class(variant)
        return claim_obj.ClaimRequest(
            **tenant.TENANT,
            instance_uuid=instance, host=host,
            request=request.Request(
                demands=(request.Demand(resource_class=name, count=count),),
                **kwargs),
            allocated={naming.provider_uuid(NODE, variant): {
                name: count if allocated is None else allocated}})

    def claim(self, count=1, instance='i1', **kwargs):
        return claims.claim(
            self.db, self.request(count, instance, **kwargs), lease=60)

    def claim_destination(self, count, migration_uuid, source='h1', **kwargs):
        return claims.claim(self.db, dataclasses.replace(
            self.request(count, **kwargs),
            role=claim_obj.ClaimRole.DESTINATION,
            migration_uuid=migration_uuid, source_host=source), lease=60)

    def boot(self, count=1, instance='i1', **kwargs):
        granted = self.claim(count, instance, **kwargs)
        claims.activate(self.db, uuids(granted))
        return granted

    @contextlib.contextmanager
    def statements(self):
        """Collect the SQL statements that the block executes."""
        found = []

        def note(conn, cursor, statement, *args):
            found.append(statement)
        sa.event.listen(self.db.engine, 'before_cursor_execute', note)
        try:
            yield found
        finally:
            sa.event.remove(self.db.engine, 'before_cursor_execute', note)

    def clean_all(self, passed=True):
        for host in host_admin.list_all(self.db):
            for task in cleaning.tasks(self.db, host.host):
                cleaning.started(
                    self.db, task.device_uuid, task.token, task.token)
                cleaning.finished(
                    self.db, task.device_uuid, task.token, task.steps,
                    cleaned.results(task.steps) if passed
                    else cleaned.failed('looked at'))

    def states(self):
        return host_admin.list_all(self.db)[0].devices

    def offered(self, inventory):
        """Return (total, reserved) of the only group."""
        [group] = inventory.groups
        return group.types[0].total, group.types[0].reserved


class MachineCase(ConductorTestCase):
    """Conductor for the state machines of hypothesis; no test."""

    def run_it(self):
        """Do nothing."""

    run = run_it

    def free(self, host):
        """Return the number of devices of a host that can be claimed."""
        return sum(device.shown_state == 'available'
                   for device in device_admin.list_all(self.db, host))


def uuids(claim):
    return [assignment.uuid for assignment in claim.assignments]


def replace(number, **facts):
    return dataclasses.replace(function(number), **facts)
