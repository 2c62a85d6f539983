# SPDX-License-Identifier: Apache-2.0
"""Tests of the vGPU capacity after reports, claims and cleanings."""

import dataclasses
import uuid

from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import admin
from tests.fixtures import hosts
from tests.fixtures import released
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

GPUS = vgpu_base.GPUS
PF = vgpu_base.PF
TYPES = vgpu_base.TYPES
t4 = vgpu_base.t4
vf = vgpu_base.vf


class MdevCapacityTest(vgpu_base.VGPUTestCase):

    def test_vgpu_takes_capacity_of_every_type_of_its_gpu(self):
        claim = self.ask(Q4=1)
        self.assertEqual(
            {'passthrough': 1, '1Q': 16, '4Q': 7, '16Q': 1},
            self.remaining())
        # Of 32, 16 are left; of 2 whole GPUs one.
        self.assertEqual(
            {'CUSTOM_GPU_T4': (2, 1), '1Q': (32, 16), '4Q': (8, 0),
             '16Q': (2, 1)}, self.offered_to_placement(claim.inventory))
        self.ask('i2', Q1=1)
        self.assertEqual({'passthrough': 0, '1Q': 15, '4Q': 3, '16Q': 0},
                         self.remaining())
        self.assertIn('vGPUs of type T4-1Q, T4-4Q', self.denied(
            'type_conflict', Q16=1))
        self.denied('not_enough_available', whole=1)
        self.end(claim)
        self.assertEqual({'passthrough': 1, '1Q': 31, '4Q': 4, '16Q': 1},
                         self.remaining())

    def test_gpu_whose_types_cannot_be_read_is_not_offered_whole(self):
        # What is on it is not known: it may be somebody's.
        unknown = dataclasses.replace(
            GPUS[0], vgpu_types=None, vgpu_mechanism=None,
            unreadable=('vGPU types',))
        hosts.store(self.db, base.scan([unknown, GPUS[1]]))
        self.assertEqual(1, self.remaining()['passthrough'])
        self.denied('not_enough_available', whole=2)
        [granted] = self.ask(whole=1).assignments
        self.assertEqual(GPUS[1].id, granted.stable_id)
        self.denied('not_enough_available', whole=1)
        # Once they can be read it is known to be free.
        hosts.store(self.db, base.scan(GPUS))
        [granted] = self.ask('i2', whole=1).assignments
        self.assertEqual(GPUS[0].id, granted.stable_id)

    def test_gpu_with_another_unreadable_attribute_is_offered_whole(self):
        hosts.store(self.db, base.scan([dataclasses.replace(
            GPUS[0], unreadable=('numa_node',)), GPUS[1]]))
        self.assertEqual(2, self.remaining()['passthrough'])
        self.ask(whole=2)

    def test_gpu_that_is_assigned_whole_offers_no_vgpu(self):
        claim = self.ask(whole=1)
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 4, '16Q': 1},
                         self.remaining())
        # Bound to vfio-pci, a GPU shows no types; what it has is known.
        assigned = claim.assignments[0].stable_id
        hosts.store(self.db, base.scan([dataclasses.replace(
            gpu, driver='vfio-pci', vgpu_types=(), vgpu_mechanism=None)
            if gpu.id == assigned else gpu for gpu in GPUS]))
        self.end(claim)
        self.assertEqual({'passthrough': 2, '1Q': 32, '4Q': 8, '16Q': 2},
                         self.remaining())

    def test_gpu_that_the_host_uses_offers_vgpus_alone(self):
        hosts.store(self.db, base.scan([
            t4(0, used_by='boot_vga'),
            t4(1, iommu_group=7, iommu_foreign_members=('0000:22:00.0',))]))
        self.assertEqual({'passthrough': 0, '1Q': 32, '4Q': 8, '16Q': 2},
                         self.remaining())
        self.denied('not_enough_available', whole=1)

    def test_vgpu_that_is_not_clean_takes_capacity(self):
        claim = self.ask(Q4=1)
        releases.release(self.db, base.uuids(claim))
        self.assertEqual(7, self.remaining()['4Q'])
        self.assertEqual(16, self.remaining()['1Q'])
        self.clean_all(passed=False)
        self.assertEqual(7, self.remaining()['4Q'])
        [row] = [device for device in device_admin.list_all(self.db)
                  if device.state == 'quarantined']
        self.assertEqual(('mdev', 'T4-4Q'), (row.kind, row.vgpu_type))
        released.release(self.db, row.uuid, 'op@c1')
        [task] = cleaning.tasks(self.db, 'h1')
        # The mdev that must go is that of the last assignment.
        self.assertEqual((base.uuids(claim)[0], 'T4-4Q'),
                         (task.assignment_uuid, task.vgpu_type))
        self.assertNotEqual(task.token, task.assignment_uuid)
        self.clean_all()
        self.assertEqual({'passthrough': 2, '1Q': 32, '4Q': 8, '16Q': 2},
                         self.remaining())

    def test_disabled_or_missing_gpu_offers_nothing(self):
        [first, _] = device_admin.list_all(self.db)
        device_admin.set_(self.db, first.uuid, 'op', enabled=False)
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 4, '16Q': 1},
                         self.remaining())
        hosts.store(self.db, base.scan(GPUS[:1]))
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 0, '16Q': 0},
                         self.remaining())

    def test_gpu_with_a_foreign_mdev_offers_nothing(self):
        foreign = str(uuid.uuid4())
        hosts.store(self.db, base.scan(
            [t4(0, existing_vgpus=(foreign,), used_by='mdev'), t4(1)]))
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 4, '16Q': 1},
                         self.remaining())
        self.assertEqual(
            {GPUS[0].id: f'vGPUs that gpgpu_plugin did not make are on it: '
                         f'mdev {foreign}', GPUS[1].id: None}, self.reasons())
        hosts.store(self.db, base.scan(GPUS))
        self.assertEqual({None}, set(self.reasons().values()))

    def reasons(self):
        return {device.stable_id: device.reason
                for device in device_admin.list_all(self.db)}

    def test_report_that_names_an_mdev_that_was_not_scanned_counts(self):
        # Another tool made it since the scan, and the driver makes no more.
        def capacity(number, *existing, **available):
            return vgpu.DriverCapacity(
                existing=existing, sampled_at=('s', number),
                available={f'T4-{name[1:]}Q': count
                           for name, count in available.items()})
        hosts.store(self.db, base.scan([
            dataclasses.replace(gpu, driver_capacity=capacity(1, Q4=4))
            for gpu in GPUS]))
        self.assertEqual(8, self.remaining()['4Q'])
        claim = self.ask(Q4=1)
        [refused] = claim.assignments
        gpu = refused.stable_id.partition('/mdev')[0]
        releases.abort(
            self.db, base.uuids(claim), touched=False, fault=None,
            driver_capacities={gpu: capacity(2, str(uuid.uuid4()), Q4=0)})
        self.assertEqual(4, self.remaining()['4Q'])
        [granted] = self.ask('i2', Q4=1).assignments
        self.assertFalse(granted.stable_id.startswith(f'{gpu}/'))

    def test_reported_mdev_of_an_assignment_changes_nothing(self):
        claim = self.ask(Q4=1)
        [mine] = base.uuids(claim)
        hosts.store(self.db, base.scan([
            dataclasses.replace(
                gpu, existing_vgpus=(mine,), used_by='mdev', vgpu_types=tuple(
                    dataclasses.replace(kind, max_instances=None)
                    for kind in TYPES)) for gpu in GPUS]))
        self.assertEqual({'passthrough': 1, '1Q': 16, '4Q': 7, '16Q': 1},
                         self.remaining())
        self.end(claim)
        self.assertEqual({'passthrough': 2, '1Q': 32, '4Q': 8, '16Q': 2},
                         self.remaining())


class VFCapacityTest(vgpu_base.VGPUTestCase):

    functions = (PF, *(vf(PF, index) for index in range(3)))

    def test_capacity_is_no_more_than_there_are_vfs(self):
        self.assertEqual({'passthrough': 0, '1Q': 3, '4Q': 3, '16Q': 1},
                         self.remaining())
        claim = self.ask(Q1=2)
        self.assertEqual([f'{PF.id}/vf0', f'{PF.id}/vf1'],
                         [assignment.stable_id
                          for assignment in claim.assignments])
        self.assertEqual({'passthrough': 0, '1Q': 1, '4Q': 0, '16Q': 0},
                         self.remaining())
        self.end(claim)
        self.assertEqual({'passthrough': 0, '1Q': 3, '4Q': 3, '16Q': 1},
                         self.remaining())

    def test_dirty_vfs_that_are_gone_take_no_capacity(self):
        releases.release(self.db, base.uuids(self.ask(Q1=3)))
        hosts.store(self.db, base.scan([
            dataclasses.replace(PF, sriov_numvfs=1), self.functions[1]]))
        self.clean_all()
        self.assertEqual({'passthrough': 0, '1Q': 1, '4Q': 1, '16Q': 1},
                         self.remaining())
        # When they are back, they are cleaned first.
        hosts.store(self.db, base.scan(self.functions))
        self.assertEqual(2, len(cleaning.tasks(self.db, 'h1')))

    def test_gpu_with_a_vf_of_a_foreign_type_offers_nothing(self):
        hosts.store(self.db, base.scan([
            PF, vf(PF, 0, existing_vgpus=('557',)), *self.functions[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 0, '16Q': 0},
                         self.remaining())
        shown = {device.stable_id: device.reason or ''
                 for device in device_admin.list_all(self.db)}
        for device in (PF, self.functions[1]):
            self.assertIn(f'type 557 of {self.functions[1].address}',
                          shown[device.id])
        self.assertEqual('', shown[self.functions[2].id])
        [listed] = [device for device in device_admin.list_all(self.db)
                    if device.stable_id == PF.id]
        self.assertEqual(shown[PF.id], device_admin.show(
            self.db, listed.uuid).reason)
        hosts.store(self.db, base.scan(self.functions))
        self.assertEqual(3, self.remaining()['1Q'])

    def test_types_that_are_first_listed_beside_a_vgpu_are_offered(self):
        [claimed] = self.ask(Q1=1).assignments
        # After a reboot of the host there is no MIG instance.
        nothing = dataclasses.replace(
            PF, vgpu_types=(),
            driver_capacity=vgpu.DriverCapacity())
        hosts.store(self.db, base.scan([nothing, *self.functions[1:]]))
        self.assertEqual(0, self.remaining()['1Q'])
        # Instances are made, and the guest is started again.
        hosts.store(self.db, base.scan([
            dataclasses.replace(
                PF, vgpu_types=None,
                driver_capacity=vgpu.DriverCapacity(
                    existing=(claimed.stable_id,),
                    available={'T4-1Q': None})),
            vf(PF, 0, existing_vgpus=('230',)), *self.functions[2:]]))
        self.assertEqual(2, self.remaining()['1Q'])
        hosts.store(self.db, base.scan([
            nothing, vf(PF, 0, existing_vgpus=('230',)),
            *self.functions[2:]]))
        self.assertEqual(0, self.remaining()['1Q'])

    def test_types_that_a_gpu_in_use_no_longer_lists_are_remembered(self):
        claim = self.ask(Q4=1)
        hosts.store(self.db, base.scan([
            dataclasses.replace(PF, vgpu_types=None),
            vf(PF, 0, existing_vgpus=('232',)), *self.functions[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 2, '16Q': 0},
                         self.remaining())
        self.end(claim)
        self.assertEqual({'passthrough': 0, '1Q': 3, '4Q': 3, '16Q': 1},
                         self.remaining())

    def test_vf_without_types_is_not_claimed(self):
        # Its vendor's driver is not bound to it.
        hosts.store(self.db, base.scan([
            PF, vf(PF, 0, vgpu_mechanism=None, driver='vfio-pci'),
            *self.functions[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 2, '4Q': 2, '16Q': 1},
                         self.remaining())
        claim = self.ask(Q1=2)
        self.assertEqual([f'{PF.id}/vf1', f'{PF.id}/vf2'],
                         [assignment.stable_id
                          for assignment in claim.assignments])
        self.denied('not_enough_available', Q1=1)

    def test_plain_vfs_are_offered_as_a_type_of_their_gpu(self):
        pf = dataclasses.replace(
            PF, vgpu_types=(vgpu.type_of_plain_vfs(3),))
        hosts.store(
            self.db,
            base.scan(
                [
                    pf,
                    *(
                        vf(PF, number, vgpu_mechanism=None)
                        for number in range(3)
                    ),
                ]
            ),
        )
        self.enable('vf3')
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 0, '16Q': 0,
                          'vf3': 3}, self.remaining())

    def test_vf_that_nova_manages_is_not_offered(self):
        hosts.store(self.db, base.scan([
            PF, vf(PF, 0, owner='Nova ([pci] device_spec)'),
            *self.functions[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 2, '4Q': 2, '16Q': 1},
                         self.remaining())

    def test_vf_that_nova_manages_takes_capacity_by_its_type(self):
        # Nova gave VF 0 away, with a 16Q: nothing more fits on the GPU.
        foreign = vf(
            PF, 0, existing_vgpus=('234',), owner='Nova ([pci] device_spec)'
        )
        pf = dataclasses.replace(
            PF,
            vgpu_types=None,
            driver_capacity=vgpu.DriverCapacity(
                existing=(foreign.id,), available={'T4-1Q': 0}
            ),
        )
        hosts.store(self.db, base.scan([pf, foreign, *self.functions[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 0, '16Q': 0},
                         self.remaining())
        self.denied('type_conflict', Q1=1)
        # It counts by the rule alone, too.
        hosts.store(self.db, base.scan([PF, foreign, *self.functions[2:]]))
        self.assertEqual(0, self.remaining()['4Q'])
        hosts.store(
            self.db,
            base.scan(
                [
                    dataclasses.replace(
                        PF, driver_capacity=vgpu.DriverCapacity(
                            available={kind.name: None for kind in TYPES})),
                    dataclasses.replace(foreign, existing_vgpus=()),
                    *self.functions[2:],
                ]
            ),
        )
        self.assertEqual({'passthrough': 0, '1Q': 2, '4Q': 2, '16Q': 1},
                         self.remaining())

    def test_dirty_vf_that_cyborg_manages_takes_capacity_until_clean(self):
        claim = self.ask(Q16=1)
        releases.release(self.db, base.uuids(claim))
        hosts.store(self.db, base.scan([
            PF, vf(PF, 0, owner='Cyborg'), *self.functions[2:]]))
        self.assertEqual({'passthrough': 0, '1Q': 0, '4Q': 0, '16Q': 0},
                         self.remaining())
        self.clean_all()
        self.assertEqual({'passthrough': 0, '1Q': 2, '4Q': 2, '16Q': 1},
                         self.remaining())

    def test_vfs_of_a_gpu_without_variant_are_offered_whole(self):
        # Some give a variant to the ids of the VFs alone.
        variant_admin.create(self.db, admin.VariantInfo(
            name='VF', vendor='10de', device='26b9'))
        hosts.store(self.db, base.scan(
            [dataclasses.replace(PF, device='1eb9'), *self.functions[1:]],
            host='h2', node_uuid='h2'))
        [listed] = group.list_types(self.db, 'h2')
        self.assertEqual(('passthrough', 3), (
            listed.vgpu_type, listed.remaining_capacity))


class SameIDTest(vgpu_base.VGPUTestCase):
    """NVIDIA's VFs have the device id of their PF."""

    functions = (PF, *(vf(PF, index, device='1eb8') for index in range(3)))

    def test_vfs_of_a_gpu_that_no_guest_can_have_are_unmanaged(self):
        for facts in ({'owner': 'Cyborg'}, {'part_of': '0000:00:00.1'},
                      {'fault': 'it does not answer'}):
            hosts.store(self.db, base.scan(
                [dataclasses.replace(PF, **facts), *self.functions[1:]]))
            self.assertEqual((), group.list_types(self.db, 'h1'))
            self.assertEqual({'unmanaged': 4}, self.states())
            self.denied('no_such_group', whole=1)
        shown = {device.stable_id: device.reason
                 for device in device_admin.list_all(self.db)}
        self.assertEqual('it does not answer', shown[PF.id])
        self.assertEqual('its GPU is unmanaged: it does not answer',
                         shown[self.functions[1].id])
        hosts.store(self.db, base.scan(self.functions))
        self.assertEqual({'passthrough': 0, '1Q': 3, '4Q': 3, '16Q': 1},
                         self.remaining())
