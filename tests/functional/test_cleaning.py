# SPDX-License-Identifier: Apache-2.0
"""GPUs between two tenants, by Nova's API and gpgpu-manage."""

from __future__ import annotations

import json
import typing

from tests.fixtures import cloud

SECRET = b'TENANT-A-SECRET-WEIGHTS'


class MemoryCase(cloud.GpuCloud):
    """One server with eight GPUs, whose memory no reset clears."""

    def setUp(self) -> None:
        super().setUp()
        self.vfio = self.driver().gpu_tracker.backend.kernel.vfio
        self.gpus = {row['address']: row for row in self.devices(
            '--variant', 'H100')}
        self.vfio.outlasting.update(self.gpus)

    def use(self) -> dict[str, typing.Any]:
        """Boot a server that leaves data in its GPU, and delete it.

        :returns: the GPU's row of ``device list``
        """
        server = self.last = self.boot(self.flavor(H100=1))
        [device] = self.devices('--used-by', server['id'])
        self.vfio.content(device['address'])[100:100 + len(SECRET)] = SECRET
        self.delete(server)
        return device

    def has_secret(self, device: dict[str, typing.Any]) -> bool:
        return SECRET in self.vfio.content(device['address'])

    def history(self, device: dict[str, typing.Any],
                *options: str) -> typing.Any:
        return json.loads(self.manage(
            'device', 'cleanings', device['uuid'], '--verify', *options))

    def machine(self, device: dict[str, typing.Any]) -> dict[str, typing.Any]:
        """Return the device as NVIDIA's check SEC21-05 reads it."""
        [found] = self.history(device, '--export', 'sec21-05')['machines']
        return dict(found)


class MemoryTest(MemoryCase):

    def test_next_server_never_reads_what_the_last_one_left(self) -> None:
        device = self.use()
        self.wait_states(available=7, quarantined=1)
        self.wait_inventory(8, 1)
        shown = self.listing('device', 'show', device['uuid'])
        self.assertIn('16 of 16 marks in its memory outlasted',
                      shown['reason'])
        # All others can be used, this one cannot.
        server = self.boot(self.flavor(H100=7))
        self.assertNotIn(f'gpu1 {device["address"]}',
                         self.devices_of(server))
        self.delete(server)
        self.wait_states(quarantined=8)

        shown = self.listing('variant', 'set', 'H100', '--cleaning-policy',
                             'scrub', '--memory-mib', '2')
        self.assertEqual(('scrub', 2), (
            shown['cleaning_policy'], shown['memory_mib']))
        for row in self.devices('--state', 'quarantined'):
            self.manage('device', 'release', row['uuid'])
        self.wait_states(available=8)
        self.assertFalse(any(map(self.has_secret, self.gpus.values())))
        self.wait_offered()
        self.boot(self.flavor(H100=8))

    def test_ledger_has_the_evidence_of_each_step(self) -> None:
        self.manage('variant', 'set', 'H100', '--cleaning-policy', 'scrub',
                    '--memory-mib', '2')
        device = self.use()
        self.wait_states(available=8)
        [record] = self.history(device, '--json')
        self.assertEqual(
            ('passed', 'scrub', 'gpu1', device['address'], 'H100'),
            (record['verdict'], record['policy'], record['host'],
             record['address'], record['variant']))
        self.assertEqual(
            [(step, 'passed') for step in record['steps']],
            [(result['step'], result['outcome'])
             for result in record['results']])
        facts = {result['step']: result['facts']
                 for result in record['results']}
        self.assertEqual(
            (2 * 1024 ** 2, 2 * 1024 ** 2),
            (facts['scrub']['bytes_verified'],
             facts['scrub']['bytes_of_memory']))
        self.assertTrue(all(facts.values()), facts)
        # The instance and its project are Nova's.
        self.assertEqual(self.last['id'], record['instance_uuid'])
        self.assertEqual(self.api.project_id, record['project_id'])
        self.assertIs(True, self.machine(device)['sanitized'])

    def test_ledger_says_what_was_not_proven(self) -> None:
        device = self.use()
        self.wait_states(available=7, quarantined=1)
        self.manage('variant', 'set', 'H100', '--cleaning-policy',
                    'reset-only')
        self.manage('device', 'release', device['uuid'])
        self.wait_states(available=8)
        self.assertEqual(
            [('failed', 'default'), ('released', 'reset-only'),
             ('passed', 'reset-only')],
            [(record['verdict'], record['policy'])
             for record in self.history(device, '--json')])
        found = self.machine(device)
        self.assertEqual((True, False), (
            found['available'], found['sanitized']))

    def test_reset_alone_has_to_be_chosen_by_name(self) -> None:
        self.manage('variant', 'set', 'H100', '--cleaning-policy',
                    'reset-only')
        device = self.use()
        self.wait_states(available=8)
        self.assertTrue(self.has_secret(device))
        [row] = self.listing('group', 'list')
        self.assertEqual('reset-only', row['cleaning_policy'])
        # The memory is evidence again: what had a tenant is looked at.
        self.manage('variant', 'set', 'H100', '--cleaning-policy', 'default')
        self.wait_states(available=7, quarantined=1)


class BarThatKeepsNothingTest(MemoryCase):
    """GPUs that show no memory without their driver, and clear it."""

    def setUp(self) -> None:
        super().setUp()
        self.vfio.stuck.update(self.gpus)
        self.vfio.outlasting.clear()

    def reason(self, device: dict[str, typing.Any]) -> str | None:
        found: str | None = self.listing(
            'device', 'show', device['uuid'])['reason']
        return found

    def verdicts(self, device: dict[str, typing.Any]) -> list[str]:
        return [record['verdict'] for record in self.history(
            device, '--json')]

    def test_gpu_waits_until_its_policy_can_pass(self) -> None:
        device = self.use()
        self.wait_for(
            lambda: 'waits: cleaning policy: canary inapplicable' in (
                self.reason(device) or ''), 'the GPU to wait for a policy')
        self.wait_states(available=7, dirty=1)
        self.wait_inventory(8, 1)
        self.boot(self.flavor(H100=8), expected='ERROR')
        server = self.boot(self.flavor(H100=7))
        self.assertNotIn(f'gpu1 {device["address"]}', self.devices_of(server))
        self.delete(server)
        self.wait_states(dirty=8)
        # It is not cleaned again in vain, but when an operator asks for it.
        self.run_once('gpu1')
        self.assertEqual(['failed'], self.verdicts(device))
        self.manage('device', 'release', device['uuid'])
        self.wait_for(lambda: self.verdicts(device) == ['failed'] * 2,
                      'the second cleaning')

        self.manage('variant', 'set', 'H100', '--cleaning-policy',
                    'reset+memory-clear+settings')
        self.wait_states(available=8)
        self.assertIsNone(self.reason(device))
        self.assertEqual(['failed', 'failed', 'passed'],
                         self.verdicts(device))
        self.wait_offered()
        self.boot(self.flavor(H100=8))
