# SPDX-License-Identifier: Apache-2.0
"""Base classes: a conductor with GPUs that can have vGPUs."""


from hypothesis import settings

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import variant_sweep
from gpgpu_plugin.conductor.admin import group as group_mod
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from tests.fixtures import examples as examples_mod
from tests.fixtures import reported
from tests.fixtures import tenant
from tests.unit.conductor import base

TYPES = tuple(vgpu.VGPUType(
    name=f'T4-{size}Q', type_id=f'nvidia-{230 + number}',
    video_ram=size * 1024, max_instances=16 // size)
    for number, size in enumerate((1, 2, 4, 8, 16)))


def t4(number, **facts):
    """Return a T4 whose vGPUs are mdevs."""
    return base.function(
        number,
        **{
            'device': '1eb8',
            'driver': 'nvidia',
            'vgpu_mechanism': vgpu.VGPUMechanism.MDEV,
            'vgpu_types': TYPES,
            **facts,
        },
    )


def vf(parent, index, **facts):
    """Return a VF of a GPU."""
    return reported.Reported(**{
        'id': f'{parent.id}/vf{index}', 'pf': parent.id, 'vf_index': index,
        'address': f'{parent.address[:-4]}01.{index}', 'vendor': '10de',
        'device': '26b9', 'class_code': '030200',
        'vgpu_mechanism': vgpu.VGPUMechanism.VF, **facts})


GPUS = (t4(0), t4(1))
PF = t4(0, vgpu_mechanism=vgpu.VGPUMechanism.VF, sriov_totalvfs=16,
        sriov_numvfs=3)


class VGPUTestCase(base.ConductorTestCase):

    functions = GPUS
    variant = False
    mix_policy = 'same_type'

    @property
    def content(self):
        return base.Content(
            self.functions, admin.VariantInfo(
                name='T4', vendor='10de', device='1eb8',
                mix_policy=self.mix_policy),
            ('T4-1Q', 'T4-4Q', 'T4-16Q'), cleaned_before=self.cleaned_before)

    def enable(self, name, host=None, *, enabled=True,
               caller=variant_sweep.PATIENT):
        return group_mod.set_type_enabled(
            self.db, 'T4', name, host, enabled=enabled, caller=caller)

    def ask(self, instance='i1', **counts):
        """Claim; ``Q4=2`` are two of T4-4Q, ``whole=1`` is a whole GPU."""
        names = {name: naming.resource_class('T4', f'T4-{name[1:]}{name[0]}')
                 if name != 'whole' else 'CUSTOM_GPU_T4' for name in counts}
        demands = tuple(sorted(
            request_mod.Demand(resource_class=names[name], count=count)
            for name, count in counts.items()))
        return claims.claim(self.db, claim_obj.ClaimRequest(
            **tenant.TENANT,
            instance_uuid=instance, host='h1',
            request=request_mod.Request(demands=demands), allocated={
                naming.provider_uuid(base.NODE, 'T4'): {
                    demand.resource_class: demand.count
                    for demand in demands}}),
            lease=60)

    def denied(self, reason, **counts):
        exc = self.assertRaises(
            exception.ClaimDenied, self.ask, 'other', **counts)
        self.assertEqual(reason, exc.reason, str(exc))
        return str(exc)

    def end(self, claim, passed=True):
        releases.release(self.db, base.uuids(claim))
        self.clean_all(passed)

    def remaining(self):
        return {info.vgpu_type.removeprefix('T4-'): info.remaining_capacity
                for info in group_mod.list_types(self.db)
                if info.enabled}

    def offered_to_placement(self, inventory):
        """Return (total, reserved) of each type in an inventory."""
        [group] = inventory.groups
        return {offered.resource_class.removeprefix('CUSTOM_VGPU_T4_T4_'):
                (offered.total, offered.reserved) for offered in group.types}


class MachineCase(VGPUTestCase):
    """Conductor for the state machines of hypothesis; no test."""

    def run_it(self):
        """Do nothing."""

    run = run_it


def run_machine(machine, examples=15, steps=12, are_all_needed=False):
    """Let a machine of hypothesis try what it can, the same each time.

    :param are_all_needed: with a third of them, something never happens
    """
    case = machine.TestCase()
    case.settings = settings(
        max_examples=(examples if are_all_needed
                      else examples_mod.count(examples)), deadline=None,
        stateful_step_count=steps, derandomize=True)
    case.runTest()
