# SPDX-License-Identifier: Apache-2.0
"""Property tests of claims, moves, failures and deletions in any order."""

import dataclasses

import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import initialize
from hypothesis.stateful import invariant
from hypothesis.stateful import precondition
from hypothesis.stateful import rule
from oslotest import base as oslotest_base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.db import tables
from gpgpu_plugin.objects import claim as claim_obj
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

HOSTS = st.sampled_from(['h1', 'h2'])
COUNTS = st.integers(1, 3)


@dataclasses.dataclass
class Move:
    """Migration that Nova has not decided yet."""

    uuid: str
    source: str
    dest: str


class RoleMachine(RuleBasedStateMachine):
    """One instance on two hosts of five GPUs each, and a neighbour.

    :ivar expected: assignments by (host, role, migration) of the instance
    :ivar host: where Nova has it
    :cvar returns: confirmed moves, of all runs, to a host where a failed
        move left devices in the role of the instance
    """

    returns = 0

    def __init__(self):
        super().__init__()
        self.case = base.MachineCase('run')
        self.case.functions = base.EIGHT[:5]
        self.case.setUp()
        self.case.report_second_host(base.EIGHT[:5])
        self.case.boot(1, 'i2', host='h2')
        self.expected = {}
        self.host = None
        self.move = None
        self.moves = 0
        self.confirmed = []

    def teardown(self):
        if self.host is not None:
            self.delete()
        releases.release(self.case.db, [
            assignment.uuid for assignment in
            claims.of_instance(self.case.db, 'i2')])
        self.case.clean_all()
        assert self.case.states() == {'available': 5}
        assert not self.everything()
        self.case.doCleanups()

    def everything(self):
        return [*claims.of_host(self.case.db, 'h1'),
                *claims.of_host(self.case.db, 'h2')]

    def on(self, host):
        """Return the keys of the instance's assignments on a host."""
        return [key for key in self.expected if key[0] == host]

    def release(self, keys):
        for key in keys:
            releases.release(self.case.db, self.expected.pop(key))

    def claim(self, key, count):
        """Claim for the instance; return whether it was granted."""
        host, role, migration_uuid = key
        request = dataclasses.replace(
            self.case.request(count, host=host), role=role,
            migration_uuid=migration_uuid)
        try:
            granted = claims.claim(self.case.db, request, lease=60)
        except exception.ClaimDenied as exc:
            assert exc.reason == 'not_enough_available', exc
            assert self.case.free(host) < count
            return False
        again = claims.claim(self.case.db, request, lease=60)
        assert base.uuids(granted) == base.uuids(again)
        self.expected[key] = base.uuids(granted)
        return True

    def activate(self, key):
        claims.activate(self.case.db, self.expected[key])

    @initialize(host=HOSTS, count=COUNTS, returned=st.booleans())
    def first_build(self, host, count, returned):
        """Begin half of the runs with a failed move and a move back.

        It is rare among moves at random, and leaves devices in the role of
        the instance where the second move goes.
        """
        self.build(host, count)
        if returned:
            [other] = {'h1', 'h2'} - {host}
            assert self.begin_move(other, 1)
            self.fail()
            assert self.begin_move(host, 1)
            self.confirm()

    @precondition(lambda self: self.host is None)
    @rule(host=HOSTS, count=COUNTS)
    def build(self, host, count):
        key = (host, claim_obj.ClaimRole.INSTANCE, None)
        if self.claim(key, count):
            self.activate(key)
            self.host = host

    @precondition(lambda self: self.host is not None and self.move is None)
    @rule(dest=HOSTS, count=COUNTS, data=st.data())
    def migrate(self, dest, count, data):
        if self.begin_move(dest, count):
            # Most are decided before anything else happens.
            data.draw(st.sampled_from([
                self.confirm, self.revert, self.fail, lambda: None]))()

    def begin_move(self, dest, count):
        """Claim for a move; return whether it was granted."""
        self.case.clean_all()
        self.moves += 1
        move = Move(f'm{self.moves}', self.host, dest)
        if not self.claim(self.destination(move), count):
            return False
        self.move = move
        return True

    @staticmethod
    def destination(move):
        return (move.dest, claim_obj.ClaimRole.DESTINATION, move.uuid)

    @precondition(lambda self: self.move is not None)
    @rule()
    def confirm(self):
        move, self.move = self.move, None
        key = self.destination(move)
        self.activate(key)
        type(self).returns += move.source != move.dest and (
            move.dest, claim_obj.ClaimRole.INSTANCE, None) in self.expected
        replaced = [other for other in self.on(move.source) if other != key]
        confirmation_ = claim_obj.MigrationConfirmation(
            instance_uuid='i1', migration_uuid=move.uuid,
            source_assignments=tuple(
                uuid for other in replaced for uuid in self.expected[other]))
        claims.confirm(self.case.db, confirmation_)
        # Also those that are delivered again, late.
        self.confirmed.append(confirmation_)
        for earlier in self.confirmed:
            claims.confirm(self.case.db, earlier)
        for other in replaced:
            del self.expected[other]
        self.expected[
            move.dest, claim_obj.ClaimRole.INSTANCE, None,
        ] = self.expected.pop(key)
        self.host = move.dest

    @precondition(lambda self: self.move is not None)
    @rule()
    def revert(self):
        move, self.move = self.move, None
        self.release([self.destination(move)])

    @precondition(lambda self: self.move is not None)
    @rule()
    def fail(self):
        """Fail on the destination, where Nova leaves the instance."""
        move, self.move = self.move, None
        if self.moves % 2:
            self.activate(self.destination(move))
        self.host = move.dest

    @precondition(lambda self: self.host is not None)
    @rule()
    def delete(self):
        self.release(list(self.expected))
        self.host = self.move = None

    @invariant()
    def every_key_has_one_set(self):
        found = {}
        for assignment in claims.of_instance(self.case.db, 'i1'):
            found.setdefault((
                assignment.host, assignment.role, assignment.migration_uuid,
            ), []).append(assignment.uuid)
        assert found == self.expected, (found, self.expected)

    @invariant()
    def no_device_is_assigned_twice(self):
        devices = [assignment.device_uuid for assignment in self.everything()]
        assert len(set(devices)) == len(devices)

    @invariant()
    def unassigned_devices_are_not_in_use(self):
        used = {assignment.device_uuid for assignment in self.everything()}
        assert used == {
            device.uuid for device in device_admin.list_all(self.case.db)
            if device.state in ('provisioning', 'assigned')}

    @invariant()
    def ordinals_have_no_gap(self):
        with self.case.db.reader() as session:
            rows = session.execute(sa.select(
                tables.ASSIGNMENTS.c.host_id, tables.ASSIGNMENTS.c.role,
                tables.ASSIGNMENTS.c.migration_uuid,
                tables.ASSIGNMENTS.c.ordinal).where(
                    tables.ASSIGNMENTS.c.active == 1,
                    tables.ASSIGNMENTS.c.instance_uuid == 'i1')).tuples().all()
        ordinals = {}
        for *key, ordinal in rows:
            ordinals.setdefault(tuple(key), []).append(ordinal)
        for found in ordinals.values():
            assert sorted(found) == list(range(len(found)))


class AnyOrderTest(oslotest_base.BaseTestCase):

    def test_claims_and_moves_keep_one_set_of_devices_a_role(self):
        RoleMachine.returns = 0
        vgpu_base.run_machine(RoleMachine, examples=20, steps=12)
        # Some confirmations had something on the destination to replace.
        self.assertGreater(RoleMachine.returns, 0)
