# SPDX-License-Identifier: Apache-2.0
"""vGPUs that the driver refuses, or creates late."""

from __future__ import annotations

import json

from gpgpu_plugin.domain import naming
from gpgpu_plugin.host.fake import vgpu_driver
from tests.functional import test_vgpus

MDEV_TYPES = 'mdev_supported_types'
T4_16Q = 'nvidia-234'
FOREIGN = '3f2f1c62-5d0e-4f68-9a7a-0c3a7f6f5b11'
INSTANCES = {'1130': ('H100L-1-12C', 12, 7), '1133': ('H100L-2-24C', 24, 3)}
"""Types of MIG instances: name, GiB, and how many fit."""


class MdevTest(test_vgpus.MdevCase):
    """mdevs that are not there when they should be."""

    def test_mdev_that_appears_late_stays_quarantined(self) -> None:
        kernel = self.driver().gpu_tracker.backend.kernel
        kernel.late.add('create')
        server = self.boot(self.vgpu_flavor(Q4=1), 'ERROR')
        self.wait_for(lambda: self.remaining()['T4-4Q'] == 7, 'quarantine')
        # What was given up appears; its place is still not another's.
        kernel.catch_up()
        [mdev] = self.mdevs()
        other = self.boot(self.vgpu_flavor(Q4=7))
        self.assertEqual(8, len(self.mdevs()))
        [row] = [device for device in self.devices('--state', 'quarantined')
                 if device['vgpu_type']]
        self.manage('device', 'release', row['uuid'])
        self.wait_for(lambda: self.remaining()['T4-4Q'] == 1, 'clean again')
        self.assertNotIn(mdev, self.mdevs())
        self.delete(server, other)

    def test_mdev_that_is_not_created_is_quarantined(self) -> None:
        kernel = self.driver().gpu_tracker.backend.kernel
        kernel.ignored.add('create')
        server = self.boot(self.vgpu_flavor(Q4=1), 'ERROR')
        self.assertEqual(set(), self.mdevs())
        # What was refused is not offered again before somebody looked.
        self.wait_for(lambda: self.remaining()['T4-4Q'] == 7, 'quarantine')
        kernel.ignored.clear()
        [row] = [device for device in self.devices('--state', 'quarantined')
                 if device['vgpu_type']]
        self.manage('device', 'release', row['uuid'])
        self.wait_for(lambda: self.remaining()['T4-4Q'] == 8, 'clean again')
        self.delete(server)


    def test_mdev_of_another_tool_is_noticed_while_it_is_there(self) -> None:
        kernel = self.driver().gpu_tracker.backend.kernel
        address = sorted(
            path.name for path in self.sysfs('gpu1').glob(
                'bus/pci/devices/*') if (path / MDEV_TYPES).is_dir())[0]
        kernel.write(
            f'bus/pci/devices/{address}/{MDEV_TYPES}/{T4_16Q}/create', FOREIGN)
        # The first one may be claimed on the card before the host is scanned.
        first = self.wait_status(
            self.post_server(self.vgpu_flavor(Q4=1)), 'ACTIVE', 'ERROR')
        server = self.boot(self.vgpu_flavor(Q4=1))
        self.delete(first, server)
        self.run_once('gpu1')
        self.wait_for(lambda: self.remaining() == {
            'passthrough': 1, 'T4-1Q': 16, 'T4-4Q': 4}, 'the other card')
        self.assertEqual(
            {address: f'vGPUs that gpgpu_plugin did not make are on it: mdev '
                      f'{FOREIGN}'},
            {device['address']: device['reason']
             for device in self.devices() if device['reason']})
        kernel.write(f'bus/mdev/devices/{FOREIGN}/remove', '1')
        self.run_once('gpu1')
        self.wait_for(lambda: self.remaining() == {
            'passthrough': 2, 'T4-1Q': 32, 'T4-4Q': 8}, 'both cards')


class NvidiaVFTest(test_vgpus.NvidiaVFCase):
    """Drivers that create fewer vGPUs of a type than its size suggests."""

    def take(self, *type_ids: str, most: int) -> None:
        """Make drivers create another number of vGPUs of types."""
        for path in self.sysfs('gpu1').glob(
                f'bus/pci/devices/*/{vgpu_driver.RULE}'):
            rule = json.loads(path.read_text())
            for type_id in type_ids or rule['types']:
                rule['types'][type_id]['max'] = most
            vgpu_driver.set_rule(path.parent, rule)

    def lose_types(self) -> None:
        """Clear the types of all VFs, as a reboot of the host does."""
        for path in self.sysfs('gpu1').glob(
                'bus/pci/devices/*/nvidia/current_vgpu_type'):
            path.write_text('0\n')

    def test_driver_capacity_limits_offers_after_changes(self) -> None:
        self.take('1153', most=3)
        first = self.boot(self.vgpu_flavor('L40S', Q12=3))
        # By its size a GPU has four of it.
        self.wait_for(lambda: self.unallocated(variant='L40S') == {
            'L40S': 0, '4Q': 12, '12Q': 4}, 'capacity')
        second = self.boot(self.vgpu_flavor('L40S', Q12=3))
        self.wait_for(lambda: self.unallocated(variant='L40S') == {
            'L40S': 0, '4Q': 0, '12Q': 0}, 'capacity')
        refused = self.boot(self.vgpu_flavor('L40S', Q12=1), 'ERROR')
        self.assertIn('No valid host', refused['fault']['message'])
        self.assertEqual([], self.devices('--state', 'quarantined'))
        self.delete(first, second, refused)
        self.wait_for(lambda: self.unallocated(variant='L40S') == {
            'L40S': 0, '4Q': 24, '12Q': 6}, 'all of it back')

    def test_refusal_of_the_driver_limits_later_offers(self) -> None:
        self.take('1153', most=3)
        # Nothing is broken; how many a GPU takes is known from now on.
        for left in (7, 6):
            refused = self.boot(self.vgpu_flavor('L40S', Q12=4), 'ERROR')
            expected = {'L40S': 0, '4Q': 24, '12Q': left}
            self.wait_for(lambda expected=expected: (
                self.unallocated(variant='L40S') == expected), 'the new limit')
            self.delete(refused)
        self.assertEqual([], self.devices('--state', 'quarantined'))
        self.assertEqual([], self.typed())
        server = self.boot(self.vgpu_flavor('L40S', Q12=4))
        self.assertEqual(['1153'] * 4, self.typed())
        self.delete(server)

    def test_server_whose_type_the_driver_lost_is_deleted_at_once(
            self) -> None:
        server = self.boot(self.vgpu_flavor('L40S', Q12=1))
        self.lose_types()
        self.take(most=0)
        self.restart_compute()
        self.assertEqual({0}, set(self.unallocated(variant='L40S').values()))
        # Nova's delete writes to Placement while the allocation is there.
        self.delete(server)

        def classes() -> dict[str, int]:
            self.run_once('gpu1')
            return self.unallocated(variant='L40S')
        self.wait_for(lambda: classes() == {'L40S': 0}, 'classes to leave')

    def make_instances(self) -> None:
        """Replace the types that the drivers list by those of instances."""
        for path in self.sysfs('gpu1').glob(
                f'bus/pci/devices/*/{vgpu_driver.RULE}'):
            vgpu_driver.set_rule(path.parent, {
                **json.loads(path.read_text()), 'mix_policy': 'any_mix',
                'types': {
                    type_id: {'name': f'NVIDIA {name}', 'max': most,
                              'video_ram': size * 1024}
                    for type_id, (name, size, most) in INSTANCES.items()}})

    def of_instances(self) -> dict[str, tuple[int, int]]:
        """Return how many of each type fit and remain, after a scan."""
        self.run_once('gpu1')
        return {row['vgpu_type']: (
            row['max_capacity'], row['remaining_capacity'])
            for row in self.listing('vgpu-type', 'list', '--enabled')
            if row['vgpu_type'].startswith('H100L')}

    def test_mig_instances_come_and_go_while_nova_compute_runs(self) -> None:
        kernel = self.driver().gpu_tracker.backend.kernel
        self.make_instances()
        self.run_once('gpu1')
        for name, *_ in INSTANCES.values():
            self.manage('vgpu-type', 'enable', 'L40S', name)
        self.assertEqual({'H100L-1-12C': (14, 14), 'H100L-2-24C': (6, 6)},
                         self.of_instances())
        servers = [self.boot(self.flavor_of({
            f'resources:{naming.resource_class("L40S", name)}': '1'}))
            for name, *_ in INSTANCES.values()]
        # Two sizes are on one card.
        self.assertEqual(['1130', '1133'], self.typed())
        rest = {'H100L-1-12C': (14, 11), 'H100L-2-24C': (6, 5)}
        self.assertEqual(rest, self.of_instances())
        self.lose_types()
        self.take(most=0)
        self.restart_compute()
        self.assertEqual({0}, {
            remaining for _, remaining in self.of_instances().values()})
        # Instances are made late, and the guests started again.
        self.make_instances()
        for server in servers:
            self.api.post_server_action(
                server['id'], {'reboot': {'type': 'HARD'}})
            self.wait_status(server['id'], 'ACTIVE')
        self.wait_for(lambda: self.typed() == ['1130', '1133'], 'types')
        self.assertEqual(rest, self.of_instances())
        # Another tool has a VF of the other card.
        vf = sorted(path.parent.name for path in self.sysfs('gpu1').glob(
            'bus/pci/devices/*/physfn'))[-1]
        current = f'bus/pci/devices/{vf}/nvidia/current_vgpu_type'
        kernel.write(current, '1130')
        self.assertEqual({4, 2}, {
            remaining for _, remaining in self.of_instances().values()})
        [reason] = {device['reason'] for device in self.devices()
                    if device['reason']}
        self.assertIn(f'did not make are on it: type 1130 of {vf}', reason)
        kernel.write(current, '0')
        self.assertEqual(rest, self.of_instances())
        self.delete(*servers)
