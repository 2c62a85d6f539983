# SPDX-License-Identifier: Apache-2.0
"""Property tests of vGPU claims in any order, by every mix policy."""

import dataclasses
import itertools
import re

import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import invariant
from hypothesis.stateful import rule
from oslotest import base as oslotest_base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import vgpu
from tests.unit.conductor import vgpu_base

# Two types are of one size.
GPUS = tuple(dataclasses.replace(gpu, vgpu_types=(
    *vgpu_base.TYPES, vgpu.VGPUType(
        name='T4-4A', type_id='nvidia-240', video_ram=4096,
        max_instances=4))) for gpu in vgpu_base.GPUS)


class ClaimMachine(RuleBasedStateMachine):
    """State machine of claims and releases of all types."""

    mix_policy = 'same_type'
    functions = GPUS

    def __init__(self):
        super().__init__()
        self.case = vgpu_base.MachineCase('run')
        self.case.mix_policy = self.mix_policy
        self.case.functions = self.functions
        self.case.setUp()
        self.case.enable('T4-4A')
        self.live = {}
        self.count = 0

    def teardown(self):
        self.case.doCleanups()

    def ask(self, counts):
        """Claim; return whether capacity was promised, and the denial."""
        remaining = self.case.remaining()
        promised = all(
            remaining['passthrough' if name == 'whole'
                      else f'{name[1:]}{name[0]}'] >= count
            for name, count in counts.items())
        self.count += 1
        try:
            self.live[f'i{self.count}'] = self.case.ask(
                f'i{self.count}', **counts)
        except exception.ClaimDenied as exc:
            return promised, exc.reason
        return promised, None

    names = st.sampled_from(['Q1', 'Q4', 'A4', 'Q16', 'whole'])

    @rule(name=names, count=st.integers(1, 5))
    def claim(self, name, count):
        promised, denied = self.ask({name: count})
        assert promised == (denied is None), (promised, denied)

    @rule(counts=st.dictionaries(
        names, st.integers(1, 3), min_size=2, max_size=3))
    def claim_several_at_once(self, counts):
        promised, denied = self.ask(counts)
        assert not promised or denied in (None, 'type_conflict'), denied
        assert promised or denied is not None

    @rule(data=st.data(), passed=st.booleans())
    def release(self, data, passed):
        if self.live:
            key = data.draw(st.sampled_from(sorted(self.live)))
            self.case.end(self.live.pop(key), passed)

    @invariant()
    def hardware_would_take_it(self):
        types_by_gpu = {}
        for assignment in claims.of_host(self.case.db, 'h1'):
            gpu, suffix, _ = re.match(
                '(.*?)(/mdev|/vf|$)(.*)', assignment.stable_id).groups()
            is_vgpu = assignment.vgpu_type != 'passthrough'
            assert bool(suffix) == is_vgpu, assignment
            types_by_gpu.setdefault(gpu, []).append(assignment.vgpu_type)
        for types in types_by_gpu.values():
            if 'passthrough' in types:
                assert len(types) == 1, types
                continue
            assert (len(set(types)) == 1
                    or self.mix_policy != 'same_type'), types
            sizes = [int(name[3:-1]) for name in types]
            assert len(set(sizes)) == 1 or self.mix_policy != 'equal_size', (
                types
            )
            assert sum(sizes) <= 16, types

    @invariant()
    def nothing_overlaps(self):
        if self.mix_policy != 'mixed_size':
            return
        with self.case.db.reader() as session:
            spans = sorted(
                (device.parent_id, device.placement_id,
                 device.placement_id + int(device.vgpu_type[3:-1]))
                for device in session.execute(sa.select(tables.DEVICES).where(
                    tables.DEVICES.c.vgpu_type.is_not(None))))
        for (gpu, _, end), (other, begin, _) in itertools.pairwise(spans):
            assert gpu != other or end <= begin, spans

    @invariant()
    def placement_is_offered_the_same(self):
        with self.case.db.reader() as session:
            found = _inventory_of(session)
        remaining = self.case.remaining()
        assignments = claims.of_host(self.case.db, 'h1')
        for name, (total, reserved) in found.items():
            key = 'passthrough' if name == 'CUSTOM_GPU_T4' else name
            used = sum(assignment.vgpu_type.removeprefix('T4-') == key
                       for assignment in assignments)
            assert total - reserved - used == remaining[key], name


class SameSizeMachine(ClaimMachine):
    """State machine of types of one size on a GPU."""

    mix_policy = 'equal_size'


class MixedMachine(ClaimMachine):
    """State machine of several sizes on a GPU."""

    mix_policy = 'any_mix'


class PlacedMachine(ClaimMachine):
    """State machine of the placements of NVIDIA's mixed-size mode."""

    mix_policy = 'mixed_size'


class VFMachine(ClaimMachine):
    """State machine of vGPUs that need one of few VFs each."""

    mix_policy = 'any_mix'
    functions = tuple(
        itertools.chain(
            *(
                (pf, *(vgpu_base.vf(pf, index) for index in range(5)))
                for pf in (
                    dataclasses.replace(
                        gpu,
                        vgpu_mechanism=vgpu.VGPUMechanism.VF,
                        sriov_totalvfs=16,
                        sriov_numvfs=5,
                    )
                    for gpu in GPUS
                )
            )
        )
    )


class SameTypeVFMachine(VFMachine):
    """State machine of GPUs whose first vGPU decides the type."""

    mix_policy = 'same_type'


def _inventory_of(session):
    [group] = capacity.host_inventory(session,
                                      host_db.get(session, 'h1')).groups
    return {offered.resource_class.removeprefix('CUSTOM_VGPU_T4_T4_'):
            (offered.total, offered.reserved) for offered in group.types}


class AnyOrderTest(oslotest_base.BaseTestCase):

    def test_same_type(self):
        vgpu_base.run_machine(ClaimMachine)

    def test_same_size(self):
        vgpu_base.run_machine(SameSizeMachine)

    def test_vfs(self):
        vgpu_base.run_machine(VFMachine)

    def test_vfs_of_same_type(self):
        vgpu_base.run_machine(SameTypeVFMachine)

    def test_mixed(self):
        vgpu_base.run_machine(MixedMachine)

    def test_mixed_placed(self):
        vgpu_base.run_machine(PlacedMachine)

