# SPDX-License-Identifier: Apache-2.0
"""Property test of one instance that moves, is reset and fails, in any order.

The machine plays Nova and libvirt on three hosts: it also confirms or
reverts whichever finished migration comes first. It applies what the rules of
``assignment_use`` end, and knows with which device each guest really runs.
"""

import dataclasses

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import initialize
from hypothesis.stateful import invariant
from hypothesis.stateful import precondition
from hypothesis.stateful import rule
from nova.compute import task_states
from oslotest import base as oslotest_base

from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.objects import claim as claim_obj
from tests.unit.compute import make
from tests.unit.conductor import vgpu_base

HOSTS = ('h1', 'h2', 'h3')
ANY_HOST = st.sampled_from(HOSTS)
SEEN = st.lists(ANY_HOST, max_size=3)
_DESTROY, _OPERATION, _KIND = (
    assignment_use.DESTROY, assignment_use.Operation,
    assignment_use.OperationKind)


@dataclasses.dataclass
class Guest:
    """A domain of libvirt.

    :ivar claim: UUID of the assignment with which it was defined
    """

    claim: str | None
    runs: bool = True


class NovaMachine(RuleBasedStateMachine):
    """One instance with a GPU, whose moves succeed or fail.

    :ivar books: assignments of each host, by their UUIDs
    :ivar guests: domains by host
    :cvar returns: confirmations, of all runs, of a migration from the host
        where the instance is
    """

    returns = 0

    def __init__(self):
        super().__init__()
        self.books = {host: {} for host in HOSTS}
        self.guests = {}
        self.place = None
        self.number = 0

    @initialize(host=ANY_HOST, away=ANY_HOST, seen=SEEN,
                is_confirmed=st.booleans())
    def build(self, host, away, seen, is_confirmed):
        """Build it; most then are away, reset to active and home again."""
        self.place = assignment_use.Location(
            host=host, vm_state='active', flavor=1)
        self.guests[host] = Guest(self.claim(host, None))
        if away != host:
            for dest in (away, host):
                self.reset()
                self.migrate(dest, seen, 'ok')
            if is_confirmed:
                self.accept(self.place.migrations[-1])

    def teardown(self):
        """Delete the instance: nothing may be left."""
        if self.place is None:
            return
        self.set(task=task_states.DELETING)
        here = self.place.host
        self.guests.pop(here, None)
        self.end(here, _DESTROY)
        assert not self.books[here], self.books
        self.place = None
        for host in HOSTS:
            if host in self.guests:
                self.guests[host].runs = False
            self.end(host)
            assert not self.books[host], self.books

    # -- what hosts do -------------------------------------------------------

    def set(self, **kwargs):
        self.place = dataclasses.replace(self.place, **kwargs)

    def decide(self, migration, status):
        self.place = self.place.decided(migration, status)

    def claim(self, host, migration):
        self.number += 1
        uuid = f'a{self.number}'
        self.books[host][uuid] = make.assignment(
            uuid=uuid, host=host, address=uuid, migration_uuid=migration,
            host_generation=self.number, role=(
                claim_obj.ClaimRole.INSTANCE if migration is None
                else claim_obj.ClaimRole.DESTINATION))
        return uuid

    def domain(self, host):
        guest = self.guests.get(host)
        if guest is None:
            return assignment_use.Domain.ABSENT
        return (assignment_use.Domain('active',
                                      frozenset({guest.claim} - {None}))
                if guest.runs else assignment_use.Domain.INACTIVE)

    def end(self, host, operation=None):
        """End what the rules end on a host; return the claims that stay."""
        assigned, domain = list(self.books[host].values()), self.domain(host)
        found = assignment_use.unused(
            assigned, self.place, host, domain, operation)
        if not assignment_use.may_run_with(found, assigned, domain, operation):
            for uuid in found:
                del self.books[host][uuid]
        return {assignment.migration_uuid
                for assignment in self.books[host].values()}

    def become_instance(self, host, migration):
        """Give a claim the role ``instance``, unless another one has it."""
        book = self.books[host]
        claims = {assignment.migration_uuid for assignment in book.values()}
        if migration in claims and None not in claims:
            for uuid, assignment in book.items():
                if assignment.migration_uuid == migration:
                    book[uuid] = dataclasses.replace(
                        assignment, role=claim_obj.ClaimRole.INSTANCE,
                        migration_uuid=None)

    def current(self, host):
        """Return the assignments with which a guest is defined."""
        book = self.books[host]
        used = assignment_use.current(
            assignment_use.claims_of(book.values()), self.place, host)
        return [uuid for uuid, assignment in book.items()
                if assignment.migration_uuid in used]

    def define(self, host):
        """Define the guest again; return whether it has its device."""
        found = self.current(host)
        self.guests[host] = Guest(*found[:1]) if found else Guest(None, False)
        return len(found) == 1

    @rule(host=ANY_HOST)
    def compare(self, host):
        self.reconcile(host)

    def reconcile(self, host):
        """Compare a host with Nova."""
        [*claims] = self.end(host)
        brought = assignment_use.brought_by(self.place, host)
        if (self.place.host == host and brought is not None
                and assignment_use.is_over(brought, self.place)
                and self.domain(host).is_active
                and claims == [brought.uuid]):
            self.become_instance(host, brought.uuid)

    # -- what Nova does ------------------------------------------------------

    def is_free(self):
        return (self.place is not None and self.place.vm_state == 'active'
                and self.place.host in self.guests)

    @precondition(is_free)
    @rule(dest=ANY_HOST, seen=SEEN,
          outcome=st.sampled_from(
              ['ok', 'ok', 'ok', 'on source', 'on destination', 'late']))
    def move(self, dest, seen, outcome):
        self.migrate(dest, seen, outcome)

    def migrate(self, dest, seen, outcome):
        """Resize or migrate; hosts compare at any moment."""
        source, old, uuid = self.place.host, self.place.flavor, (
            f'm{self.number}')

        def moment():
            for host in seen:
                self.reconcile(host)
        self.set(task=task_states.RESIZE_PREP, migrations=(
            assignment_use.Migration(
                uuid=uuid, status='pre-migrating', source=source, dest=dest,
                new_flavor=old + 1), *self.place.migrations))
        self.end(dest, _OPERATION(_KIND.PREPARE, uuid))
        claimed = self.claim(dest, uuid)
        moment()
        self.set(task=task_states.RESIZE_MIGRATING)
        self.guests[source].runs = False
        if outcome == 'on source':
            self.decide(uuid, 'error')
            self.set(task=None, vm_state='error')
            return
        self.decide(uuid, 'post-migrating')
        self.set(task=task_states.RESIZE_FINISH, host=dest, flavor=old + 1)
        moment()
        if outcome != 'on destination':
            self.guests[dest] = Guest(claimed)
            moment()
        if outcome == 'ok':
            self.decide(uuid, 'finished')
            self.set(task=None, vm_state='resized')
        else:
            self.decide(uuid, 'error')
            self.set(task=None, vm_state='error', flavor=old)

    def undecided(self, data):
        """Return what Nova's database names first."""
        return data.draw(st.sampled_from([
            migration for migration in self.place.migrations
            if migration.status == 'finished']))

    def is_resized(self):
        return self.place is not None and self.place.vm_state == 'resized'

    @precondition(is_resized)
    @rule(data=st.data())
    def confirm(self, data):
        self.accept(self.undecided(data))

    def accept(self, migration):
        source, uuid, here = migration.source, migration.uuid, self.place.host
        type(self).returns += source == here != migration.dest
        self.decide(uuid, 'confirming')
        if source != here:
            self.guests.pop(source, None)
        claims = self.end(source, _OPERATION(_KIND.CONFIRM, uuid))
        if len(claims) < 2:
            self.become_instance(
                source if claims - {None} else migration.dest,
                next(filter(None, claims), uuid))
        self.decide(uuid, 'confirmed')
        self.set(vm_state='active')

    @precondition(is_resized)
    @rule(data=st.data())
    def revert(self, data):
        migration = self.undecided(data)
        source, uuid, dest = migration.source, migration.uuid, migration.dest
        self.set(task=task_states.RESIZE_REVERTING)
        self.decide(uuid, 'reverting')
        self.guests.pop(dest, None)
        self.end(dest, _DESTROY)
        self.decide(uuid, 'reverted')
        self.reconcile(source)
        self.set(host=source, flavor=migration.new_flavor - 1)
        self.reconcile(source)
        has_device = self.define(source)
        self.set(task=None, vm_state='active' if has_device else 'error')

    @precondition(lambda self: self.place is not None)
    @rule()
    def set_active(self):
        self.reset()

    def reset(self):
        """Set the server to active, as an operator does."""
        self.set(vm_state='active')

    @precondition(lambda self: self.place is not None)
    @rule()
    def reboot(self):
        if self.place.vm_state != 'resized' and self.define(self.place.host):
            self.set(vm_state='active')
        self.reconcile(self.place.host)

    @precondition(is_free)
    @rule()
    def stop(self):
        self.guests[self.place.host].runs = False

    # -- what is always true -------------------------------------------------

    @invariant()
    def running_guest_has_its_device(self):
        for host, guest in self.guests.items():
            assert not guest.runs or guest.claim in self.books[host], host

    @invariant()
    def instance_can_be_started(self):
        if self.place is not None:
            assert len(self.current(self.place.host)) == 1, (
                self.place, self.books)


class OperationsInAnyOrderTest(oslotest_base.BaseTestCase):

    def test_no_operation_ends_what_a_guest_has(self):
        NovaMachine.returns = 0
        vgpu_base.run_machine(NovaMachine, examples=100, steps=15,
                              are_all_needed=True)
        # Some confirmed a migration from where the guest is.
        self.assertGreater(NovaMachine.returns, 0)
