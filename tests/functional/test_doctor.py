# SPDX-License-Identifier: Apache-2.0
"""Drifts made on purpose in a running cloud, found, and repaired or left."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import time
import typing
import uuid
from collections.abc import Callable

import fixtures
import sqlalchemy as sa
from openstack import exceptions as sdk_exceptions
from testtools import content

from gpgpu_plugin.cmd import doctor
from gpgpu_plugin.cmd import manage
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.db import caller_key as caller_key_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.objects import claim as claim_obj
from tests.fixtures import clocks
from tests.fixtures import cloud
from tests.fixtures import cloud_views
from tests.fixtures import libvirt_cloud
from tests.fixtures import tenant
from tests.functional import test_vgpus

_VERSION = '1.39'
_Action = Callable[[], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What the command printed, and how long it took."""

    code: int
    rows: list[dict[str, typing.Any]]
    summary: str
    seconds: float

    def outcomes(self, host: str | None = None) -> dict[str, str]:
        """Return the outcome by the name of the drift."""
        return {row['Drift']: row['Outcome'] for row in self.rows
                if host in (None, row['Host'])}


class DoctorTest(test_vgpus.VGPUViews, libvirt_cloud.GpuLibvirtCloud):
    """A host with whole GPUs, one with mdevs, one server on each.

    Most drifts are made, found and undone one after the other in one cloud,
    since a cloud takes seconds to start.
    """

    machines: typing.ClassVar[dict[str, str]] = {
        'gpu1': 'pcie-l40s-4', 'gpu2': 'nvidia-t4-2'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('L40S', '--vendor', '10de', '--device', '26b9'), *test_vgpus.T4)

    def setUp(self) -> None:
        super().setUp()
        self.manage('vgpu-type', 'enable', 'T4', 'T4-4Q')
        self.wait_for(lambda: self.unallocated('gpu2').get('4Q') == 8,
                      'type in Placement')
        self.whole = self.boot(self.flavor(L40S=1))
        self.shared = self.boot(self.vgpu_flavor(Q4=1))
        self.made: list[str] = []
        self.repaired: list[str] = []
        self.left: list[str] = []

    # -- the command --------------------------------------------------------

    def doctor(self, *arguments: str, connect: typing.Any = None) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        handlers = list(logging.getLogger().handlers)
        began = time.monotonic()
        try:
            with (contextlib.redirect_stdout(out),
                  contextlib.redirect_stderr(err)):
                code = manage.run(
                    ['doctor', '--confirm-after', '0', '-f', 'json',
                     *arguments], cloud.CONF,
                    connect=connect or self.connect)
        finally:
            logging.getLogger().handlers[:] = handlers
        if not out.getvalue():
            raise cloud_views.CommandFailed(err.getvalue())
        return Answer(
            code=code, rows=json.loads(out.getvalue()),
            summary=err.getvalue(), seconds=time.monotonic() - began)

    def check(self, name: str, make: _Action, *, fixed: bool = False,
              undo: _Action = lambda: None,
              beside: tuple[str, ...] = ()) -> None:
        """Make a drift, find it, and see what ``--fix`` does about it.

        :param fixed: whether it is repaired, not left with a reason
        :param undo: undoes it by hand
        :param beside: drifts that it causes, with the same outcome
        """
        make()
        self.made.append(name)
        found = self.doctor()
        self.assertEqual(
            dict.fromkeys((name, *beside), 'found'), found.outcomes(),
            found.rows)
        self.assertEqual(doctor.DRIFT_LEFT, found.code, name)
        after = self.doctor('--fix')
        outcome = 'repaired' if fixed else 'left'
        self.assertEqual(dict.fromkeys((name, *beside), outcome),
                         after.outcomes(), after.rows)
        self.assertEqual(
            doctor.ALL_REPAIRED if fixed else doctor.DRIFT_LEFT, after.code)
        if fixed:
            self.repaired.append(name)
        else:
            self.left.append(name)
            [row] = [row for row in after.rows if row['Drift'] == name]
            self.assertIn('not repaired: ', row['Reason'])
            again = self.doctor()
            self.assertEqual({name, *beside}, again.outcomes().keys())
        undo()
        clean = self.doctor()
        self.assertEqual((0, []), (clean.code, clean.rows), name)

    # -- authorities --------------------------------------------------------

    def sql(self, statement: typing.Any) -> None:
        with self.conductor.database.engine.begin() as connection:
            connection.execute(statement)

    def tracker(self, host: str = 'gpu1') -> typing.Any:
        return self.driver(host).gpu_tracker

    def kernel(self, host: str) -> fake_kernel.FakeKernel:
        return fake_kernel.FakeKernel(str(self.sysfs(host)))

    def assignment(self, server: dict[str, typing.Any],
                   host: str = 'gpu1') -> claim_obj.Assignment:
        [found] = self.tracker(host).assignments.of_instance(server['id'])
        return typing.cast('claim_obj.Assignment', found)

    def free(self, host: str = 'gpu1', variant: str = 'L40S') -> typing.Any:
        return next(device for device in self.devices(
            '--host', host, '--variant', variant)
            if device['shown_state'] == 'available')

    def claim_of(self, host: str, resource_class: str, instance: str,
                 **role: typing.Any) -> None:
        """Claim for an instance, as nova-compute on the host does."""
        tracker = self.tracker(host)
        granted = tracker.session.call(
            tracker.api.claim, claim_obj.ClaimRequest(
                **tenant.TENANT,
                instance_uuid=instance, host=host, request=request.Request(
                    demands=(request.Demand(
                        resource_class=resource_class, count=1),)), **role))
        tracker.assignments.add(instance, granted.assignments)
        tracker.inventory.accept(granted.inventory)
        self.run_once(host)

    # -- drifts of hosts ----------------------------------------------------

    def _assignments(self) -> None:
        gpu = naming.resource_class('L40S')
        self.check('instance_deleted', lambda: self.claim_of(
            'gpu1', gpu, str(uuid.uuid4())), fixed=True)
        self.check('instance_elsewhere', lambda: self.claim_of(
            'gpu1', gpu, self.shared['id']), fixed=True)
        self.check('destination_without_migration', lambda: self.claim_of(
            'gpu1', gpu, self.shared['id'],
            role=claim_obj.ClaimRole.DESTINATION,
            migration_uuid=str(uuid.uuid4())), fixed=True)

    def _book(self) -> None:
        book = self.tracker().assignments
        kept = self.assignment(self.whole)

        def end_behind_the_host() -> None:
            granted = self.claim_directly('gpu1', 1, 'L40S').assignments
            book.add(granted[0].instance_uuid, granted)
            releases.end(self.conductor.database,
                         [granted[0].uuid], 'behind the host')
        self.check('book_assignment_ended', end_behind_the_host, fixed=True,
                   beside=('inventory_larger',))
        self.check('book_assignment_lacking', lambda: book.remove(
            self.whole['id'], [kept.uuid]), fixed=True)
        self.assertEqual(kept.uuid, self.assignment(self.whole).uuid)
        self.check('release_pending', lambda: book.add_pending(
            [str(uuid.uuid4())]), fixed=True)
        self.check('database_behind_book', lambda: book.acknowledge(10 ** 6),
                   fixed=True)

    def _drivers(self) -> None:
        kernel, address = (
            self.kernel('gpu1'), self.assignment(self.whole).address)

        def take_from_vfio() -> None:
            kernel.write('bus/pci/drivers/vfio-pci/unbind', address)

        def bind_again() -> None:
            kernel.write('bus/pci/drivers/vfio-pci/bind', address)
        self.check('assigned_device_not_on_vfio', take_from_vfio,
                   undo=bind_again)
        self._stop(self.whole)
        self.check('assigned_device_not_on_vfio', take_from_vfio, fixed=True)
        self._start(self.whole)
        self._stranger(kernel, self.free()['address'])

    def _stranger(self, kernel: fake_kernel.FakeKernel, free: str) -> None:
        """Bind a free GPU by hand, as for a guest of somebody else."""
        def bind() -> None:
            kernel.write(
                f'bus/pci/devices/{free}/driver_override', 'vfio-pci')
            kernel.write('bus/pci/drivers/vfio-pci/bind', free)
        self.check('free_device_on_vfio', bind, undo=lambda: kernel.write(
            'bus/pci/drivers/vfio-pci/unbind', free))

    def _stop(self, server: dict[str, typing.Any]) -> None:
        self.api.post_server_action(server['id'], {'os-stop': None})
        self.wait_status(server['id'], 'SHUTOFF')

    def _start(self, server: dict[str, typing.Any]) -> None:
        self.api.post_server_action(server['id'], {'os-start': None})
        self.wait_status(server['id'], 'ACTIVE')

    def _mdevs(self) -> None:
        kernel, own = self.kernel('gpu2'), self.assignment(
            self.shared, 'gpu2')
        foreign = str(uuid.uuid4())
        create = self._create(own.address)

        def remove(mdev: str) -> None:
            kernel.write(f'bus/mdev/devices/{mdev}/remove', '1')
        self.check(
            'mdev_unassigned', lambda: kernel.write(create, foreign),
            undo=lambda: remove(foreign))
        self._found_at_start(foreign)
        self._stop(self.shared)
        self.check('assigned_mdev_missing', lambda: remove(own.uuid),
                   fixed=True)
        self._start(self.shared)

    def _found_at_start(self, mdev: str) -> None:
        """Check that nova-compute logs the mdev that it finds."""
        self.kernel('gpu2').write(self._create(self.assignment(
            self.shared, 'gpu2').address), mdev)
        self.restart_compute('gpu2')
        self.wait_for(
            lambda: f'Drift mdev_unassigned on gpu2: {mdev}'
            in self.stdlog.logger.output, 'the drift in the log')
        self.kernel('gpu2').write(f'bus/mdev/devices/{mdev}/remove', '1')

    def _create(self, address: str) -> str:
        """Return the file by which a T4-4Q is made on a GPU."""
        root = self.sysfs('gpu2')
        [found] = [
            path.parent for path in root.glob(
                f'bus/pci/devices/{address}/mdev_supported_types/*/name')
            if path.read_text(encoding='utf-8').strip() == 'GRID T4-4Q']
        return str((found / 'create').relative_to(root))

    def _guest(self) -> None:
        [domain] = [found for found in self.connections['gpu1']._vms.values()
                    if found.UUIDString() == self.whole['id']]
        hostdevs = domain._def['devices']['hostdevs']
        before = list(hostdevs)
        _, bus, rest = self.free()['address'].split(':')
        slot, function = rest.split('.')

        def undo() -> None:
            hostdevs[:] = before
        self.check('guest_device_missing', hostdevs.clear, undo=undo)
        self.check('guest_device_unassigned', lambda: hostdevs.append({
            **before[0], 'bus': f'0x{bus}', 'slot': f'0x{slot}',
            'function': f'0x{function}'}), undo=undo)

    def _boot_files(self) -> None:
        [display] = [device for device in self.devices('--host', 'gpu1')
                     if device['shown_state'] == 'unmanaged']
        file = (self.sysfs('gpu1') / 'etc/driverctl.d'
                / f'pci-{display["address"]}')
        file.parent.mkdir(parents=True, exist_ok=True)
        self.check('designated_device_unmanaged',
                   lambda: file.write_text('vfio-pci\n'), undo=file.unlink)

    def test_drifts_of_hosts_are_found_and_repaired_or_left(self) -> None:
        clean = self.doctor()
        self.addDetail('figures', content.text_content(
            f'{clean.seconds:.2f} s, {len(clean.summary.splitlines())} lines: '
            f'doctor'))
        self.assertEqual((0, []), (clean.code, clean.rows))
        self.assertIn('2 hosts examined: consistent', clean.summary)
        for part in (self._assignments, self._book, self._drivers,
                     self._mdevs, self._guest, self._boot_files):
            part()
        self._report()

    def _report(self) -> None:
        """Print the figure for the report."""
        logging.getLogger(__name__).warning(
            'drifts made: %d, repaired: %d, left with a reason: %d',
            len(self.made), len(self.repaired), len(self.left))

    # -- drifts of the database, Placement and Nova -------------------------

    def _database(self) -> None:
        device, usage = tables.DEVICES, usage_db.TABLE
        types = tables.TYPES
        assigned = self.assignment(self.whole)

        def set_state(address: str, state: str) -> None:
            self.sql(sa.update(device).where(
                device.c.address == address).values(state=state))
        self.check('capacity_wrong', lambda: self.sql(
            sa.update(types).where(types.c.vgpu_type == 'T4-4Q')
            .values(remaining_capacity=99)), fixed=True)
        self.check('usage_without_assignment', lambda: self.sql(
            sa.insert(usage).values(
                assignment_uuid=str(uuid.uuid4()), instance_uuid='i1',
                host='gpu1', began_at=clocks.now(),
                project_id='p1', user_id='u1', flavor='f1',
                device_uuid=str(uuid.uuid4()), address='0000:3b:00.0',
                resource_class='CUSTOM_GPU_L40S', vgpu_type='passthrough')),
            fixed=True)
        self.check('key_of_unknown_host', lambda: self.sql(
            sa.insert(caller_key_db.TABLE).values(
                kind='host', name='gone', number=1, master_id='none',
                created_at=clocks.now())),
            undo=lambda: self.sql(sa.delete(caller_key_db.TABLE)))
        free = self.free()
        self.check(
            'state_without_assignment',
            lambda: set_state(free['address'], 'assigned'), fixed=True,
            beside=('capacity_wrong', 'inventory_larger'),
            undo=lambda: self._release(free['uuid']))
        self.check(
            'assignment_without_state',
            lambda: set_state(assigned.address, 'dirty'), fixed=True)

    def _release(self, device: str) -> None:
        """Clean a device that was quarantined."""
        self.manage('device', 'release', device)
        self.wait_for(lambda: self.states('gpu1', 'L40S') == {
            'assigned': 1, 'available': 3}, 'cleaned')
        self.wait_inventory(4, 0, 'gpu1', 'L40S')

    def _inventories(self) -> None:
        path = f'/resource_providers/{self.provider("gpu1", "L40S")}'

        def put(part: str, change: Callable[[typing.Any], object]) -> None:
            body = self.placement.get(f'{path}/{part}', version=_VERSION).body
            change(body[part])
            response = self.placement.put(
                f'{path}/{part}', body, version=_VERSION)
            self.assertEqual(200, response.status, response.body)

        def add(inventories: typing.Any, total: int, reserved: int) -> None:
            inventories['CUSTOM_GPU_L40S']['total'] += total
            inventories['CUSTOM_GPU_L40S']['reserved'] += reserved
        self.check('inventory_larger', lambda: put(
            'inventories', lambda found: add(found, 2, 0)), fixed=True)
        self.check('inventory_smaller', lambda: put(
            'inventories', lambda found: add(found, 0, 1)), fixed=True)
        self.check('trait_missing', lambda: put(
            'traits', lambda found: found.remove('CUSTOM_GPU_L40S')),
            fixed=True)
        self.check('trait_foreign', lambda: put(
            'traits', lambda found: found.append('HW_GPU_API_VULKAN')),
            fixed=True)

    def _providers(self) -> None:
        provider = str(uuid.uuid4())

        def post() -> None:
            self.assertEqual(200, self.placement.post(
                '/resource_providers', {
                    'name': 'gone_gpu_L40S', 'uuid': provider},
                version=_VERSION).status)
            self.assertEqual(200, self.placement.put(
                f'/resource_providers/{provider}/traits', {
                    'resource_provider_generation': 0, 'traits': sorted(
                        naming.traits('L40S'))}, version=_VERSION).status)
        self.check('provider_of_unknown_host', post, fixed=True)

    def _allocations(self) -> None:
        path = f'/allocations/{self.whole["id"]}'
        body = self.placement.get(path, version=_VERSION).body
        stray = str(uuid.uuid4())
        gpus = {self.provider('gpu1', 'L40S'): {
            'resources': {'CUSTOM_GPU_L40S': 1}}}

        def put(consumer: str, allocations: object,
                generation: object) -> None:
            response = self.placement.put(f'/allocations/{consumer}', {
                'allocations': allocations, 'project_id': 'p', 'user_id': 'u',
                'consumer_generation': generation,
                'consumer_type': 'INSTANCE'}, version=_VERSION)
            self.assertEqual(204, response.status, response.body)

        def remove() -> None:
            put(self.whole['id'], {
                name: {'resources': found['resources']} for name, found
                in body['allocations'].items() if name not in gpus},
                body['consumer_generation'])
        self.check(
            'allocation_without_assignment', lambda: put(stray, gpus, None),
            undo=lambda: self.placement.delete(
                f'/allocations/{stray}', version=_VERSION))
        self.check('assignment_without_allocation', remove, fixed=True)
        self.wait_inventory(4, 1, 'gpu1', 'L40S')
        provider = f'/resource_providers/{self.provider("gpu1", "L40S")}'
        self.check('provider_missing', lambda: self.assertEqual(
            204, self.placement.delete(provider, version=_VERSION).status),
            fixed=True)

    def _nova(self) -> None:
        flavor = ''

        def make() -> None:
            nonlocal flavor
            flavor = self.flavor_of({'resources:CUSTOM_GPU_GONE': '1'})
        self.check('flavor_of_unknown_class', make,
                   undo=lambda: self.api.api_delete(f'/flavors/{flavor}'))

    def test_drifts_of_services_are_found_and_repaired_or_left(
            self) -> None:
        for part in (self._database, self._inventories, self._providers,
                     self._nova, self._allocations):
            part()
        self._unknown()
        self._irreversible()
        self._report()

    def _unknown(self) -> None:
        """Check that silence is never consistency."""
        def refuse(cloud: str | None = None) -> typing.NoReturn:
            raise sdk_exceptions.SDKException('no such cloud')
        found = self.doctor(connect=refuse)
        self.assertEqual({'placement_not_examined': 'found',
                          'nova_not_examined': 'found'}, found.outcomes())
        self.assertEqual(doctor.NOT_EXAMINED, found.code)
        self.sql(sa.insert(tables.HOSTS).values(
            name='gone', node='gone', node_uuid=str(uuid.uuid4()),
            session_began_at=clocks.now(), plugin_version='1', heard_at=0))
        self.made.append('host_without_service')
        self.left.append('host_without_service')
        # For the host that is gone, alone: others may need longer.
        with fixtures.MonkeyPatch(
                'gpgpu_plugin.rpc.compute_api.EXAMINE_TIMEOUT', 3):
            found = self.doctor('--fix')
        self.assertEqual({'host_without_service': 'left',
                          'host_not_examined': 'left'},
                         found.outcomes('gone'))
        self.sql(sa.delete(tables.HOSTS).where(tables.HOSTS.c.name == 'gone'))

    def _irreversible(self) -> None:
        """Make drifts that nothing undoes."""
        assigned = self.assignment(self.whole)
        free = self.free()
        self.sql(sa.insert(tables.HOLDS).from_select(
            ['device_id', 'kind', 'reason', 'since'],
            sa.select(tables.DEVICES.c.id, sa.literal('failed'),
                      sa.literal('made'), sa.literal(clocks.now())).where(
                tables.DEVICES.c.address == free['address'])))
        self.unplug('gpu1', assigned.address)
        self._assign_twice(assigned.uuid)
        found = self.doctor('--host', 'gpu1').outcomes()
        for name in ('assigned_device_missing', 'device_assigned_twice',
                     'quarantined_device_unbound'):
            self.made.append(name)
            self.left.append(name)
            self.assertEqual('found', found[name])
        after = self.doctor('--host', 'gpu1', '--fix')
        # The second instance does not exist, yet nothing is released.
        self.assertEqual('left', after.outcomes()['instance_deleted'])
        for name in self.made[-3:]:
            self.assertEqual('left', after.outcomes()[name], after.rows)
        self.assertEqual(doctor.DRIFT_LEFT, after.code)

    def _assign_twice(self, assignment: str) -> None:
        """Lose the unique keys, as a database without constraints has."""
        table = tables.ASSIGNMENTS
        columns = ', '.join(column.name for column in table.columns)
        # On one connection: another one of the pool may not know yet that
        # there is no table of this name.
        with self.conductor.database.engine.begin() as connection:
            for text in (
                    'CREATE TABLE copy AS SELECT * FROM assignments',
                    'DROP TABLE assignments',
                    'ALTER TABLE copy RENAME TO assignments',
                    f'INSERT INTO assignments ({columns}) SELECT {columns} '
                    f'FROM assignments WHERE uuid = \'{assignment}\''):
                connection.execute(sa.text(text))
        self.sql(sa.text(
            f'UPDATE assignments SET uuid = \'{uuid.uuid4()}\', id = 999, '
            f'instance_uuid = \'{uuid.uuid4()}\' WHERE rowid = ('
            f'SELECT MAX(rowid) FROM assignments)'))

    def _check_ownership(self) -> None:
        """Check nothing: what cannot be undone contradicts it."""
