# SPDX-License-Identifier: Apache-2.0
"""Property tests of usage: moves, evacuations and a hostile host in any order.

The hosts h1 and h2 do what nova-compute does; h3 claims its own GPUs for the
instance of the others whenever it likes.
"""

import datetime
import uuid

import fixtures
import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import initialize
from hypothesis.stateful import invariant
from hypothesis.stateful import precondition
from hypothesis.stateful import rule
from oslotest import base as oslotest_base

from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import notifier
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor.admin import history
from gpgpu_plugin.db import outbox
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.domain import event
from gpgpu_plugin.objects import claim as claim_obj
from tests.fixtures import clocks
from tests.fixtures import hosts
from tests.fixtures import notified
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

START = datetime.datetime(2026, 11, 1)
HONEST = ('h1', 'h2')
HOSTILE = 'h3'
COUNTS = st.integers(1, 2)


class UsageMachine(RuleBasedStateMachine):
    """One instance on two honest hosts, and a hostile one.

    :ivar expected: beginning and end of each usage on the honest hosts
    :ivar host: where Nova has the instance
    :ivar held: assignments of the instance by honest host
    :ivar down: honest hosts whose nova-compute is stopped
    :ivar left: when another usage of the instance began first since an honest
        host that has it compared; a host that stops before it compares again
        counts as left since then
    :ivar notified: honest hosts that are to compare and have not yet
    :cvar resumed: comparisons, of all runs, that resumed usage
    :cvar made_up: ``exists`` notifications, of all runs, for a part of a
        period of which others had been written
    """

    resumed = made_up = 0

    def __init__(self):
        super().__init__()
        self.seconds = 0
        self.case = base.MachineCase('run')
        self.case.functions = ()
        self.case.setUp()
        self.case.useFixture(clocks.Clocks(self.now))
        self.case.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.notifier.AUDIT_CHUNK', 2))
        self.case.db.publish_as(notified.PUBLISHER)
        self.audit(chunks=1)
        self.starts = dict.fromkeys((*HONEST, HOSTILE), 0)
        for host in self.starts:
            self.start(host)
        self.expected = {}
        self.held = {host: [] for host in HONEST}
        self.host = None
        self.move = None
        self.down = set()
        self.left = {}
        self.notified = set()
        self.comparisons = self.moves = 0

    def teardown(self):
        for host in sorted(self.down):
            self.come_back(host)
        self.compare()
        self.usage_is_as_expected()
        self.audit(chunks=10 ** 3)
        self.audits_add_up_to_the_usage()
        type(self).made_up += sum(
            not data['audit_period_beginning'].endswith('00:00Z')
            for data in notified.existing(self.case.db))
        self.case.doCleanups()

    def now(self):
        return START + datetime.timedelta(seconds=self.seconds)

    def pass_time(self):
        """Let what follows happen later than all before."""
        self.seconds += 10
        return self.now()

    def start(self, host):
        """Start the host's nova-compute, which reports."""
        expected = self.starts[host]
        self.starts[host] += 1
        hosts.begin(
            self.case.db, host, base.node_uuid(host), expected=expected,
            start_uuid=self.origin(host).start_uuid)
        reports.report(self.case.db, base.scan(
            base.EIGHT, host=host, node_uuid=base.node_uuid(host), number=1),
            self.origin(host))

    def origin(self, host):
        number = self.starts[host]
        return hosts.origin(
            host, base.node_uuid(host), session=number,
            start_uuid=str(uuid.uuid5(
                uuid.NAMESPACE_DNS, f'{host}, start {number}')))

    # -- what the honest hosts do -------------------------------------------

    def build(self, host, count):
        """Claim and activate; return the assignments."""
        self.case.clean_all()
        granted = base.uuids(self.case.claim(count, host=host))
        began = self.pass_time()
        claims.activate(self.case.db, granted, origin=self.origin(host))
        self.notify(releases.left_hosts(self.case.db, granted))
        self.expected |= {uuid_: [began, None] for uuid_ in granted}
        self.held[host] += granted
        return granted

    def notify(self, names):
        """Notify hosts to compare, as the manager does."""
        for host in set(names) & set(HONEST):
            self.notified.add(host)
            self.left.setdefault(host, self.now())

    def end(self, assignments, at):
        for uuid_ in assignments:
            if self.expected[uuid_][1] is None:
                self.expected[uuid_][1] = at

    def release(self, host, ended=None, waited=0):
        """Have a host release what it has.

        :param ended: when the guests ended; None: now
        :param waited: seconds until a conductor answers
        """
        at = self.pass_time()
        uuids, self.held[host] = self.held[host], []
        self.left.pop(host, None)
        self.seconds += waited
        releases.release(self.case.db, uuids, self.origin(host),
                         dict.fromkeys(uuids, waited))
        self.end(uuids, ended or at)

    @initialize(host=st.sampled_from(HONEST), count=COUNTS)
    def boot(self, host, count):
        self.build(host, count)
        self.host = host

    @precondition(lambda self: self.host is None)
    @rule(host=st.sampled_from(HONEST), count=COUNTS)
    def boot_again(self, host, count):
        if host not in self.down and not self.held[host]:
            self.boot(host, count)

    @precondition(lambda self: self.host is not None
                  and self.host not in self.down)
    @rule(waited=st.sampled_from([0, 5000]))
    def delete(self, waited):
        self.release(self.host, waited=waited)
        self.host = None

    @precondition(lambda self: self.host is not None and not self.down)
    @rule(dest=st.sampled_from(HONEST), count=COUNTS, confirmed=st.booleans())
    def migrate(self, dest, count, confirmed):
        """Resize or migrate, with a claim as the destination."""
        self.case.clean_all()
        self.moves += 1
        uuids = base.uuids(self.case.claim_destination(
            count, f'm{self.moves}', source=self.host, host=dest))
        self.pass_time()
        claims.activate(self.case.db, uuids, origin=self.origin(dest))
        at = self.pass_time()
        if not confirmed:
            releases.release(self.case.db, uuids, self.origin(dest))
            return
        source, self.held[self.host] = self.held[self.host], []
        self.left.pop(self.host, None)
        _, notified = claims.confirm(
            self.case.db, claim_obj.MigrationConfirmation(
                instance_uuid='i1', migration_uuid=f'm{self.moves}',
                source_assignments=tuple(source)), self.origin(self.host))
        self.notified.update(set(notified) & set(HONEST))
        self.end(source, at)
        self.expected |= {uuid_: [at, None] for uuid_ in uuids}
        self.held[dest] += uuids
        self.host = dest

    @precondition(lambda self: self.host is not None)
    @rule(count=COUNTS, fails=st.booleans())
    def evacuate(self, count, fails):
        """Evacuate from a host that stops; it may fail after activation."""
        source = self.host
        [dest] = set(HONEST) - {source}
        if dest in self.down or self.held[dest]:
            return
        self.down.add(source)
        self.build(dest, count)
        if fails:
            self.release(dest)
            return
        self.end(self.held[source], self.left[source])
        self.host = dest

    @precondition(lambda self: self.down)
    @rule(data=st.data())
    def host_comes_back(self, data):
        self.come_back(data.draw(st.sampled_from(sorted(self.down))))

    def come_back(self, host):
        self.down.discard(host)
        self.pass_time()
        self.start(host)
        self.compare_host(host)

    def compare_host(self, host):
        """Compare with Nova, as nova-compute does."""
        self.notified.discard(host)
        self.left.pop(host, None)
        if host != self.host:
            if self.held[host]:
                self.release(host)
            return
        self.comparisons += 1
        before = self.usages()
        self.pass_time()
        releases.compare_allocations(
            self.case.db, host, {}, self.held[host], self.comparisons,
            self.origin(host), used=self.held[host])
        type(self).resumed += before != self.usages()

    @precondition(lambda self: self.notified - self.down)
    @rule()
    def compare(self):
        for host in sorted(self.notified - self.down):
            self.compare_host(host)

    # -- what the hostile host does -----------------------------------------

    @rule(moves=st.booleans())
    def claim_for_the_instance(self, moves):
        """Use a GPU for the instance of others, as a build or as a move."""
        if claims.of_host(self.case.db, HOSTILE):
            releases.release(self.case.db, [
                row.uuid for row in claims.of_host(self.case.db, HOSTILE)],
                self.origin(HOSTILE))
        if moves:
            granted = base.uuids(self.case.claim_destination(
                1, 'm0', source=HOSTILE, host=HOSTILE))
        else:
            granted = base.uuids(self.case.claim(1, host=HOSTILE))
        self.pass_time()
        claims.activate(self.case.db, granted, origin=self.origin(HOSTILE))
        self.notify(releases.left_hosts(self.case.db, granted))
        if moves:
            _, notified = claims.confirm(
                self.case.db, claim_obj.MigrationConfirmation(
                    instance_uuid='i1', migration_uuid='m0'),
                self.origin(HOSTILE))
            self.notify(notified)
        self.case.clean_all()

    # -- what the conductor does --------------------------------------------

    @rule(chunks=st.integers(1, 3))
    def audit(self, chunks):
        """Write notifications of an hour that ends, or some of them."""
        self.seconds += 3700
        stops = iter([False] * chunks)
        notifier.audit_usage(self.case.db, event.AuditPeriod.HOUR,
                             lambda: next(stops, True))

    # -- what holds ---------------------------------------------------------

    def usages(self):
        with self.case.db.reader() as session:
            return {row.assignment_uuid: [row.began_at, row.ended_at]
                    for row in session.execute(
                        sa.select(usage_db.TABLE).where(
                            usage_db.TABLE.c.host.in_(HONEST)))}

    @invariant()
    def usage_is_as_expected(self):
        """Usage has neither gaps nor overlaps, once hosts have compared."""
        found, waiting = self.usages(), {
            uuid_ for host in self.notified | self.down
            for uuid_ in self.held[host]}
        assert found.keys() == self.expected.keys()
        for uuid_, (began, ended) in found.items():
            assert began == self.expected[uuid_][0]
            if uuid_ not in waiting:
                assert ended == self.expected[uuid_][1], (
                    uuid_, found, self.expected)

    @invariant()
    def audits_add_up_to_the_usage(self):
        """Each second of use in audited periods is in one notification."""
        with self.case.db.reader() as session:
            [state] = session.execute(sa.select(outbox.STATES))
            usages = session.execute(sa.select(usage_db.TABLE)).all()
        found = notified.seconds(self.case.db)
        for usage in usages:
            until = (state.auditing_until
                     if usage.id <= state.audited_usage_id
                     else state.audited_until)
            ended = min(usage.ended_at or until, until)
            assert found[usage.assignment_uuid] == max(
                0, (ended - usage.began_at).total_seconds()), (
                    usage.assignment_uuid, until,
                    notified.existing(self.case.db))

    @invariant()
    def export_has_what_has_ended_for_good(self):
        for row in history.unexported(self.case.db, 1000, None):
            if row.host in HONEST:
                ended = self.expected[row.uuid][1]
                assert ended is not None
                assert row.ended_at == f'{ended.isoformat()}Z'


class AnyOrderTest(oslotest_base.BaseTestCase):

    def test_usage_is_what_its_host_says_whatever_others_claim(self):
        UsageMachine.resumed = UsageMachine.made_up = 0
        vgpu_base.run_machine(UsageMachine, are_all_needed=True)
        self.assertGreater(UsageMachine.resumed, 0)
        self.assertGreater(UsageMachine.made_up, 0)
