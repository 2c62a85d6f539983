# SPDX-License-Identifier: Apache-2.0
"""Operations on a server that stays on its host, including failures.

After each operation libvirt, conductor, kernel and Placement are compared.
"""

from __future__ import annotations

import contextlib
import os
import typing
from collections.abc import Iterator

import fixtures
from nova import context as nova_context
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client as api_client

from gpgpu_plugin import exception
from tests.fixtures import cloud
from tests.fixtures import libvirt_cloud

DOMAIN = 'nova.tests.fixtures.libvirt.Domain'


class OperationCase(libvirt_cloud.GpuLibvirtCloud):
    """Base class of tests of one server on the first of two hosts.

    :cvar variant: of the GPUs of the guest
    :cvar count: GPUs that the guest has
    """

    variant = 'L40S'
    count = 2
    machines: typing.ClassVar[dict[str, str]] = {
        'gpu1': 'pcie-l40s-4', 'gpu2': 'pcie-l40s-4'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('L40S', '--vendor', '10de', '--device', '26b9'),)

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot_first()
        self.gpus = self.hostdevs(self.server)
        self.assertEqual(self.count, len(self.gpus))
        self.gpus_assigned = self.expected({'gpu1': self.gpus})
        self.nothing_assigned = self.expected({})
        self.wait_facts(self.server, self.gpus_assigned)

    def boot_first(self) -> dict[str, typing.Any]:
        """Boot the server."""
        return self.boot(self.flavor(**{self.variant: self.count}))

    def act(self, action: str, body: object = None) -> None:
        self.api.post_server_action(self.server['id'], {action: body})

    def done(self, status: str = 'ACTIVE', *, domain: bool = True) -> None:
        """Wait for the end of the operation; the server must keep its devices.

        :param domain: whether libvirt has its domain
        """
        self.wait_status(self.server['id'], status)
        self.wait_facts(self.server, self.gpus_assigned if domain else {
            **self.gpus_assigned, 'guest': {}})

    def make_folder(self) -> None:
        """Create the server's folder, which is missing without an image."""
        os.makedirs(os.path.join(
            cloud.CONF.instances_path, self.server['id']))

    def failed(self, action: str, *words: str) -> None:
        """Wait until the latest action of this name failed for this reason.

        Then the server can be asked for its next operation: nova-compute
        writes the event first, and ends the server's task after it.
        """
        def reason() -> str | None:
            for entry in self.api.get_instance_actions(self.server['id']):
                if entry['action'] != action:
                    continue
                events = self.api.api_get(
                    f'/servers/{self.server["id"]}/os-instance-actions/'
                    f'{entry["request_id"]}').body['instanceAction']['events']
                return ' '.join(
                    str(event.get('details') or event.get('traceback'))
                    for event in events if event['result'] == 'Error') or None
            return None
        found = self.wait_for(reason, f'{action} failed')
        for word in words:
            self.assertIn(word, found)
        self.wait_for(lambda: self.api.get_server(self.server['id'])[
            'OS-EXT-STS:task_state'] is None, f'{action} has ended')

    @contextlib.contextmanager
    def broken(self, *targets: str) -> Iterator[None]:
        """Make libvirt refuse calls, given by their names in ``Domain``."""
        def refuses(*args: object, **kwargs: object) -> typing.NoReturn:
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError, 'it is broken',
                error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR,
                error_message='it is broken',
                error_domain=fakelibvirt.VIR_FROM_QEMU)
        with contextlib.ExitStack() as patches:
            for target in targets:
                patches.enter_context(
                    fixtures.MonkeyPatch(f'{DOMAIN}.{target}', refuses))
            yield


class SameHostTest(OperationCase):
    """Operations during which the server keeps its devices."""

    def test_reboots_keep_devices(self) -> None:
        for kind in ('HARD', 'SOFT', 'HARD'):
            self.act('reboot', {'type': kind})
            self.done()
        with self.broken('createWithFlags'):
            self.act('reboot', {'type': 'HARD'})
            self.failed('reboot', 'libvirtError')
            self.done('ERROR', domain=False)
        self.act('reboot', {'type': 'HARD'})
        self.done()
        # What cannot be shut down is rebooted hard.
        with self.broken('shutdown'):
            self.act('reboot', {'type': 'SOFT'})
            self.done()

    def test_stop_and_start_keep_devices(self) -> None:
        with self.broken('destroy'):
            self.act('os-stop')
            self.failed('stop', 'libvirtError')
            self.done()
        self.act('os-stop')
        self.done('SHUTOFF')
        with self.broken('createWithFlags'):
            self.act('os-start')
            self.failed('start', 'libvirtError')
            self.done('SHUTOFF', domain=False)
        self.act('os-start')
        self.done()

    def test_user_reads_that_gpus_were_not_ready(self) -> None:
        self.act('os-stop')
        self.done('SHUTOFF')
        with fixtures.MockPatchObject(
                self.driver().gpu_tracker, 'attachment',
                side_effect=exception.HostError(
                    path='/sys/x', reason='broken')):
            self.act('os-start')
            self.failed('start', 'could not be made ready')
            self.act('reboot', {'type': 'HARD'})
            self.failed('reboot', 'could not be made ready')
        [fault] = self.wait_status(
            self.server['id'], 'ERROR')['fault']['message'].splitlines()
        self.assertIn('could not be made ready', fault)
        self.act('reboot', {'type': 'HARD'})
        self.done()

    def test_pause_keeps_devices(self) -> None:
        with self.broken('suspend'):
            self.act('pause')
            self.failed('pause', 'libvirtError')
            self.done()
        self.act('pause')
        self.done('PAUSED')
        with self.broken('resume'):
            self.act('unpause')
            self.failed('unpause', 'libvirtError')
            self.done('PAUSED')
        self.act('unpause')
        self.done()

    def test_rescue_keeps_devices(self) -> None:
        self.make_folder()
        with self.broken('createWithFlags'):
            self.act('rescue')
            self.failed('rescue', 'cannot be rescued')
            self.done('ERROR')
        self.act('reboot', {'type': 'HARD'})
        self.done()
        self.act('rescue')
        self.done('RESCUE')
        with self.broken('createWithFlags'):
            self.act('unrescue')
            self.failed('unrescue', 'libvirtError')
            self.done('ERROR')
        self.act('reboot', {'type': 'HARD'})
        self.done()
        self.act('rescue')
        self.done('RESCUE')
        self.act('unrescue')
        self.done()

    def test_rebuild_keeps_devices_even_if_it_fails(self) -> None:
        rebuild = {'imageRef': cloud.IMAGE}
        with self.broken('createWithFlags'):
            self.act('rebuild', rebuild)
            self.failed('rebuild', 'libvirtError')
            self.wait_status(self.server['id'], 'ERROR')
        # Nova takes the allocation of a rebuild that failed back, though the
        # server stays where it is.
        without = {'gpu1': self.gpus}
        reserved = {'gpu1 L40S': (4, 2), 'gpu2 L40S': (4, 0)}
        self.wait_facts(self.server, {
            **self.expected({}, without, gpu1=0), 'offered': reserved})
        self.act('rebuild', rebuild)
        self.wait_status(self.server['id'], 'ACTIVE')
        self.wait_facts(self.server, {
            **self.expected(without, gpu1=0), 'offered': reserved})
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)

    def test_snapshot_keeps_devices(self) -> None:
        def images() -> set[str]:
            return {image['name'] for image in self.glance.detail(
                nova_context.get_admin_context())}
        before = images()
        self.flags(disable_libvirt_livesnapshot=False, group='workarounds')
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver._live_snapshot'))
        # The disks of Nova's fixture are called as those on LVM are.
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.utils.get_disk_type_from_path',
            return_value=None))
        self.act('createImage', {'name': 'live'})
        self.done()
        # One that would save the guest's memory, as of disks on LVM.
        self.flags(disable_libvirt_livesnapshot=True, group='workarounds')
        self.act('createImage', {'name': 'cold'})
        self.done()
        self.act('os-stop')
        self.done('SHUTOFF')
        self.act('createImage', {'name': 'stopped'})
        self.done('SHUTOFF')
        self.assertEqual({'live', 'stopped'}, images() - before)

    def test_suspend_and_live_migration_are_refused(self) -> None:
        self.act('suspend')
        self.failed('suspend', 'Suspend is not supported')
        self.done()
        live = {'host': None, 'block_migration': 'auto'}
        try:
            self.act('os-migrateLive', live)
        except api_client.OpenStackApiException as refused:
            self.assertEqual(400, refused.response.status_code)
        else:
            self.failed('live-migration')
        # nova-conductor logs it when the action has ended.
        self.wait_for(
            lambda: 'cannot be live migrated' in self.stdlog.logger.output,
            'the reason in the log')
        self.done()

    def test_restored_server_keeps_devices(self) -> None:
        self.flags(reclaim_instance_interval=3600)
        self.api.delete_server(self.server['id'])
        self.done('SOFT_DELETED')
        with self.broken('createWithFlags'):
            self.act('restore')
            self.failed('restore', 'libvirtError')
            self.done('SOFT_DELETED', domain=False)
        self.act('restore')
        self.done()

        # What Nova reclaims is given back, and it can be refused to do so.
        self.api.delete_server(self.server['id'])
        self.done('SOFT_DELETED')
        # As after the hour.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.compute.manager.ComputeManager._deleted_old_enough',
            lambda *args: True))
        with self.broken('undefineFlags', 'undefine'):
            self._reclaim()
            self.wait_facts(self.server, self.gpus_assigned)
        self._reclaim()
        self.wait_facts(self.server, self.nothing_assigned)

    def _reclaim(self) -> None:
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.host_mappings['gpu1'].cell_mapping) as cell:
            self.computes['gpu1'].manager._reclaim_queued_deletes(cell)


class ReleaseTest(OperationCase):
    """Operations that release the server's devices."""

    def test_delete_frees_devices(self) -> None:
        with self.broken('undefineFlags', 'undefine'):
            self.api.delete_server(self.server['id'])
            self.failed('delete', 'libvirtError')
            self.wait_status(self.server['id'], 'ERROR')
            # Its guest may still have them.
            self.wait_facts(self.server, {
                **self.gpus_assigned,
                'guest': self.facts(self.server)['guest']})
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)
        self.boot(self.flavor(L40S=4), host='gpu1')

    def test_shelve_frees_devices_and_unshelve_claims_again(self) -> None:
        with self.broken('undefineFlags', 'undefine'):
            self.act('shelve')
            self.failed('shelve', 'libvirtError')
        self.done('SHELVED')
        self.act('shelveOffload')
        self.wait_status(self.server['id'], 'SHELVED_OFFLOADED')
        self.wait_facts(self.server, self.nothing_assigned)
        with self.broken('createWithFlags'):
            self.act('unshelve')
            self.failed('unshelve', 'libvirtError')
            self.wait_status(self.server['id'], 'SHELVED_OFFLOADED')
            self.wait_facts(self.server, self.nothing_assigned)
        self.restart_scheduler('ComputeFilter')
        claims = [self.claim_directly(host, 4, 'L40S')
                  for host in self.machines]
        self.act('unshelve')
        self.failed('unshelve', 'not_enough_available')
        self.wait_status(self.server['id'], 'SHELVED_OFFLOADED')
        self.assertEqual(set(), self.devices_of(self.server))
        for host, claim in zip(self.machines, claims, strict=True):
            self.abandon(claim)
            self.driver(host).gpu_tracker.refresh()
            self.run_once(host)
            self.wait_inventory(4, 0, host, 'L40S')
        self.act('unshelve')
        host = self.wait_status(
            self.server['id'], 'ACTIVE')['OS-EXT-SRV-ATTR:host']
        devices = self.hostdevs(self.server, host)
        self.wait_facts(self.server, self.expected({host: devices}))
        self.assertEqual(2, len(devices))
