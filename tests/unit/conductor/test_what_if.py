# SPDX-License-Identifier: Apache-2.0
"""Tests that a plan to drain hosts changes nothing and can be carried out."""

import dataclasses

import fixtures
import hypothesis
import sqlalchemy as sa
from hypothesis import strategies as st
from oslotest import base as oslotest_base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import what_if
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.db import migration
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import what_if as what_if_rules
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import forecast
from tests.fixtures import examples
from tests.fixtures import hosts
from tests.fixtures import tenant
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

VFS = (vgpu_base.PF, *(vgpu_base.vf(vgpu_base.PF, index)
                       for index in range(3)))
ANY, SAME_NUMA = request_mod.GPUTopology.ANY, request_mod.GPUTopology.SAME_NUMA


def rows(db):
    """Return all that the database has."""
    with db.engine.connect() as connection:
        return {table.name: sorted(map(str, connection.execute(
            sa.select(table)).all()))
            for table in migration.METADATA.sorted_tables}


def asked(count, resource_class='CUSTOM_GPU_H100', **fields):
    return request_mod.Request(demands=(request_mod.Demand(
        resource_class=resource_class, count=count),), **fields)


def question(requests, targets, drained=('h1',), vcpus=8, free=100,
             **fields):
    """Return a question about instances, each of a kind of its own.

    :param requests: by instance
    :param targets: hosts that Placement offers for all of them
    """
    options = {base.node_uuid(host): ({host: {'VCPU': vcpus}},)
               for host in targets}
    return forecast.DrainQuestion(
        hosts=drained, kinds=tuple(
            what_if_rules.InstanceKind(request=request, options=options)
            for request in requests.values()),
        leaving={instance: number
                 for number, instance in enumerate(requests)},
        free={host: {'VCPU': free} for host in targets}, **fields)


def targets(answer):
    return [(move.instance_uuid, move.target) for move in answer.moves]


class DrainTest(base.ConductorTestCase):

    def setUp(self):
        super().setUp()
        self.report_second_host()

    def ask(self, requests, targets=('h1', 'h2'), **fields):
        silent_after = fields.pop('silent_after', None)
        return what_if.drain(
            self.db, question(requests, targets, **fields),
            silent_after=silent_after)

    def test_instance_goes_to_the_other_host(self):
        self.boot(4)
        answer = self.ask({'i1': asked(4)})
        self.assertEqual([('i1', 'h2')], targets(answer))
        [left] = answer.capacities
        # Four free on h1 and eight on h2; then four on h2.
        self.assertEqual(('H100', 'passthrough', 'CUSTOM_GPU_H100', 12, 4), (
            left.variant, left.vgpu_type, left.resource_class, left.before,
            left.after))

    def test_instance_that_fits_nowhere_comes_last_without_a_target(self):
        self.boot(3, 'i2')
        self.boot(5, 'i1')
        self.boot(2, 'there', host='h2')
        answer = self.ask({'i2': asked(3), 'i1': asked(5)})
        self.assertEqual([('i1', 'h2'), ('i2', None)], targets(answer))

    def test_what_placement_lacks_is_taken_by_nobody(self):
        self.boot(1)
        self.boot(1, 'i2')
        both = {'i1': asked(1), 'i2': asked(1)}
        for fields, expected in (
                ({'targets': ()}, [None, None]), ({'free': 8}, ['h2', None])):
            self.assertEqual(expected, [
                target for _, target in targets(self.ask(both, **fields))])

    def test_hosts_that_take_nothing_are_no_targets(self):
        self.boot(1)
        for fields in ({'drained': ('h1', 'h2')}, {'silent_after': -3600}):
            self.assertEqual([('i1', None)], targets(
                self.ask({'i1': asked(1)}, **fields)))

    def test_host_that_nova_does_not_select_is_no_target(self):
        self.boot(1)
        asking = question({'i1': asked(1)}, ('h2',))
        self.assertEqual([('i1', None)], targets(what_if.drain(
            self.db, dataclasses.replace(asking, kinds=(
                dataclasses.replace(asking.kinds[0], closed=('h2',)),)))))

    def test_no_more_hosts_are_loaded_than_can_matter(self):
        self.boot(1)
        self.boot(1, 'i2')
        names = [f'h{number}' for number in range(3, 9)]
        for name in names:
            hosts.store(self.db, base.scan(
                base.EIGHT, host=name, node_uuid=base.node_uuid(name)))
        answer = self.ask({'i1': asked(1), 'i2': asked(1)}, targets=names)
        self.assertTrue(all(move.target for move in answer.moves))
        with self.statements() as found:
            self.ask({'i1': asked(1), 'i2': asked(1)}, targets=names)
        self.assertLess(len(found), 30)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.conductor.what_if._AT_ONCE', 2))
        # h1, and the first two.
        answer = self.ask(
            {'i1': asked(1), 'i2': asked(1)}, targets=names)
        self.assertEqual(3, answer.examined)
        # Nothing fits.
        answer = self.ask({'i1': asked(9)}, targets=names)
        self.assertEqual(7, answer.examined)

    def test_too_much_is_refused(self):
        for fields in (
                {'leaving': {f'i{number}': 0 for number in range(257)}},
                {'leaving': {'i1': 1}},
                {'kinds': (what_if_rules.InstanceKind(request=asked(1)),
                           ) * 257},
                {'kinds': (what_if_rules.InstanceKind(request=asked(1),
                                                      options={
                    f'n{number}': () for number in range(501)}),) * 2},
                {'kinds': (what_if_rules.InstanceKind(
                    request=asked(1, 'CUSTOM_FPGA')),)}):
            self.assertRaises(
                exception.Invalid, what_if.drain, self.db,
                dataclasses.replace(
                    question({'i1': asked(1)}, ['h2']), **fields))
        self.assertRaises(exception.NotFound, self.ask, {'i1': asked(1)},
                          drained=('h9',))

    def test_who_leaves_and_how_long_their_gpus_are_cleaned(self):
        granted = self.boot(2)
        self.boot(1, 'i2', host='h2')
        [known] = what_if.leaving(self.db, ['h1', 'h1'])
        self.assertEqual(forecast.Leaving(
            instance_uuid='i1', host='h1',
            resources={'CUSTOM_GPU_H100': 2}), known)
        releases.release(self.db, base.uuids(granted))
        self.clean_all()
        self.boot(2)
        [known, other] = what_if.leaving(self.db, ['h1', 'h2'])
        self.assertEqual('i2', other.instance_uuid)
        self.assertIsNone(other.cleaning_seconds)
        self.assertIsInstance(known.cleaning_seconds, float)
        self.assertRaises(exception.NotFound, what_if.leaving, self.db, ['x'])


# -- plans that are carried out ---------------------------------------------

def check(case, requests, others):
    """Drain h1 as planned, and check that the plan came true.

    :param requests: by instance on h1
    """
    before = rows(case.db)
    asking = question(requests, others)
    answer = what_if.drain(case.db, asking)
    case.assertEqual(before, rows(case.db))
    case.assertEqual(sorted(requests), sorted(
        move.instance_uuid for move in answer.moves))
    host_admin.drain(case.db, 'h1', 'op', draining=True)
    for move in answer.moves:
        request = requests[move.instance_uuid]
        if move.target is not None:
            case.assertIsNone(
                denial(case, request, move.target, move.instance_uuid), move)
    for move in answer.moves:
        if move.target is None:
            for host in others:
                case.assertIsNotNone(denial(
                    case, requests[move.instance_uuid], host, 'late'))
    left = {}
    for info in group.list_types(case.db):
        left[info.vgpu_type] = (
            left.get(info.vgpu_type, 0) + info.remaining_capacity)
    for capacity in answer.capacities:
        case.assertEqual(left[capacity.vgpu_type], capacity.after, capacity)


def denial(case, request, host, instance):
    """Claim for a migration from h1; return the reason of a denial."""
    try:
        claims.claim(case.db, claim_obj.ClaimRequest(
            **tenant.TENANT,
            instance_uuid=instance, host=host, request=request,
            role=claim_obj.ClaimRole.DESTINATION, source_host='h1',
            migration_uuid=f'm-{instance}'), lease=60)
    except exception.ClaimDenied as exc:
        return exc.reason
    return None


SETTINGS = hypothesis.settings(
    max_examples=examples.count(12), deadline=None, derandomize=True)


class CarriedOutTest(oslotest_base.BaseTestCase):

    @SETTINGS
    @hypothesis.given(
        leaving=st.lists(st.tuples(
            st.integers(1, 4), st.sampled_from([ANY, SAME_NUMA])),
            min_size=1, max_size=4),
        there=st.lists(st.tuples(
            st.sampled_from(['h2', 'h3']), st.integers(1, 5)), max_size=4),
        disabled=st.sets(st.integers(0, 15), max_size=4))
    def test_of_whole_gpus(self, leaving, there, disabled):
        case = base.MachineCase('run')
        case.setUp()
        try:
            for name in ('h2', 'h3'):
                hosts.store(case.db, base.scan(
                    base.EIGHT, host=name, node_uuid=base.node_uuid(name)))
            requests = {}
            for number, (count, topology) in enumerate(leaving):
                if boot(case, asked(count, topology=topology), 'h1',
                        f'i{number}'):
                    requests[f'i{number}'] = asked(count, topology=topology)
            for number, (host, count) in enumerate(there):
                boot(case, asked(count), host, f'j{number}')
            devices = [*device_admin.list_all(case.db, 'h2'),
                       *device_admin.list_all(case.db, 'h3')]
            for number in disabled:
                device_admin.set_(
                    case.db, devices[number].uuid, 'op', enabled=False)
            check(case, requests, ('h2', 'h3'))
        finally:
            case.doCleanups()

    @SETTINGS
    @hypothesis.given(
        leaving=st.lists(st.tuples(
            st.sampled_from(['1Q', '4Q', '16Q', None]), st.integers(1, 3)),
            min_size=1, max_size=4),
        there=st.lists(st.tuples(
            st.sampled_from(['1Q', '4Q']), st.integers(1, 3)), max_size=3),
        policy=st.sampled_from(['same_type', 'any_mix']))
    def test_of_mdevs(self, leaving, there, policy):
        self.carry_out(vgpu_base.GPUS, leaving, there, policy)

    @SETTINGS
    @hypothesis.given(
        leaving=st.lists(st.tuples(
            st.sampled_from(['1Q', '4Q']), st.integers(1, 2)),
            min_size=1, max_size=3),
        there=st.lists(st.just(('1Q', 1)), max_size=2))
    def test_of_vgpus_on_vfs(self, leaving, there):
        self.carry_out(VFS, leaving, there, 'any_mix')

    def carry_out(self, functions, leaving, there, policy):
        case = vgpu_base.MachineCase('run')
        case.mix_policy, case.functions = policy, functions
        case.setUp()
        try:
            hosts.store(case.db, base.scan(
                functions, host='h2', node_uuid=base.node_uuid('h2')))
            for name in ('T4-1Q', 'T4-4Q', 'T4-16Q'):
                case.enable(name)
            requests = {}
            for number, (size, count) in enumerate(leaving):
                if boot(case, of_type(size, count), 'h1', f'i{number}'):
                    requests[f'i{number}'] = of_type(size, count)
            for number, (size, count) in enumerate(there):
                boot(case, of_type(size, count), 'h2', f'j{number}')
            check(case, requests, ('h2',))
        finally:
            case.doCleanups()


def of_type(size, count):
    return asked(count, naming.resource_class(
        'T4', f'T4-{size}' if size else naming.PASSTHROUGH))


def boot(case, request, host, instance):
    """Claim and activate; return whether there was enough."""
    try:
        granted = claims.claim(case.db, claim_obj.ClaimRequest(
            **tenant.TENANT,
            instance_uuid=instance, host=host, request=request), lease=60)
    except exception.ClaimDenied:
        return False
    claims.activate(case.db, base.uuids(granted))
    return True
