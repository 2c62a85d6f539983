# SPDX-License-Identifier: Apache-2.0
"""Property tests of what operators do to GPUs with vGPUs, in any order.

A host has a GPU whose plain VFs have a variant of their own, one whose vGPUs
are VFs of the vendor's VFIO driver, and one whose vGPUs are mdevs and that
guests also get whole. The machine knows what the hardware is like: which VFs
and mdevs there are, and what a guest has used since its last cleaning.
"""

import collections

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import initialize
from hypothesis.stateful import invariant
from hypothesis.stateful import precondition
from hypothesis.stateful import rule
from oslotest import base as oslotest_base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import group
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.fixtures import released
from tests.fixtures import tenant
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

OPERATOR = 'root@control'
PLAIN, VENDOR, MDEV = range(3)
"""Numbers of the GPUs: with plain VFs, VFs of the vendor's driver, mdevs."""
GPUS = st.sampled_from([PLAIN, VENDOR, MDEV])
WITH_VFS = st.sampled_from([PLAIN, VENDOR])
VF_COUNTS = st.sampled_from([0, 2, 3])
CLASSES = {
    'CUSTOM_GPU_MI300X_VF': ('MI300X-VF', 'passthrough'),
    'CUSTOM_GPU_T4': ('T4', 'passthrough'),
    **{naming.resource_class('T4', name): ('T4', name)
       for name in ('T4-1Q', 'T4-4Q')}}
OPENINGS = ('nothing', 'end', 'retire', 'exchange', 'quarantine', 'withhold')
WHOLE = 'whole'
_UNCLEAN = ('dirty', 'cleaning', 'quarantined')


class VerbMachine(RuleBasedStateMachine):
    """A host with vGPUs of all kinds, instances, and an operator.

    :ivar numbers: number of the card that is in the place of each GPU
    :ivar vfs: number of VFs that each GPU has now
    :ivar mdevs: assignments whose mdev exists, with their instances
    :ivar used: units of GPUs that no guest may get before a cleaning
    :ivar seen: units for which the conductor has had a row
    :ivar disabled: units that no guest may get before they are enabled
    :ivar owners: instance and unit by assignment
    :ivar running: cleanings that have begun
    :cvar done: number of verbs, of all runs, by name, kind of the device and
        whether they were refused
    """

    done = collections.Counter()

    def __init__(self):
        super().__init__()
        self.numbers = dict.fromkeys((PLAIN, VENDOR, MDEV), 0)
        self.vfs = {PLAIN: 2, VENDOR: 2}
        self.used, self.disabled, self.seen = set(), set(), set()
        self.owners, self.running, self.mdevs = {}, {}, set()
        self.draining, self.instances = False, 0
        self.case = vgpu_base.MachineCase('run')
        self.case.mix_policy = 'any_mix'
        self.case.functions = self.functions()
        self.case.setUp()
        variant_admin.create(self.case.db, admin.VariantInfo(
            name='MI300X-VF', vendor='10de', device='74b5'))
        self.report()

    def teardown(self):
        self.case.doCleanups()

    # -- what there is ------------------------------------------------------

    def functions(self):
        """Return what a scan finds now."""
        return (*self._with_vfs(PLAIN, device='74a1'),
                *self._with_vfs(
                    VENDOR, device='1eb8', driver='nvidia',
                    vgpu_types=vgpu_base.TYPES,
                    vgpu_mechanism=vgpu.VGPUMechanism.VF),
                vgpu_base.t4(
                    MDEV, dsn=self._dsn(MDEV),
                    existing_vgpus=tuple(sorted(self.mdevs)),
                    used_by='mdev' if self.mdevs else None))

    def _with_vfs(self, number, **facts):
        count = self.vfs[number]
        gpu = base.function(
            number, dsn=self._dsn(number), sriov_totalvfs=4,
            sriov_numvfs=count, used_by='vf' if count else None, **facts)
        of_vfs = ({'device': '74b5', 'vgpu_mechanism': None}
                  if number == PLAIN else {})
        return gpu, *(vgpu_base.vf(gpu, index, dsn=None, **of_vfs)
                      for index in range(count))

    def _dsn(self, number):
        return f'48-b0-2d-00-00-00-{number:02x}-{self.numbers[number]:02x}'

    def report(self):
        hosts.store(self.case.db, base.scan(self.functions()))
        devices = self.now()
        self.seen |= {self.unit(device) for device in devices}
        for number in self.vfs:
            states = {device.state for device in devices
                      if self.unit(device)[0] == number
                      and device.kind == 'pci'}
            # A GPU is accepted if its VFs are cleaned in its place.
            if states & {'available', 'dirty'} and not states & {'retired'}:
                found = [device.state for device in devices
                         if self.unit(device)[0] == number
                         and device.parent is not None]
                if found and set(found) != {'quarantined'}:
                    self.forget_unseen((number, WHOLE))

    def listed(self):
        return device_admin.list_all(
            self.case.db, include_retired=True)

    @staticmethod
    def unit(device):
        """Return (number of the GPU, what of it) of a device."""
        number = int(device.stable_id.partition('pci0000:')[2][:2])
        _, found, index = device.stable_id.partition('/vf')
        return number, int(index) if found else WHOLE

    def now(self):
        """Return the devices that are not of a card that is gone."""
        parents = {device.uuid: device for device in self.listed()}
        return [device for device in parents.values()
                if device.replaced_by is None and (
                    device.parent is None
                    or parents[device.parent].replaced_by is None)]

    def units(self, number):
        """Return all units that a GPU may have."""
        return {(number, WHOLE)} | {
            (number, index) for index in range(4) if number != MDEV}

    def forget_unseen(self, unit):
        """Let VFs that were never there be clean ones if a GPU is accepted."""
        number, index = unit
        if index == WHOLE:
            self.used -= self.units(number) - self.seen

    # -- what hosts do ------------------------------------------------------

    def remaining(self):
        """Return how much is offered, by resource class."""
        found = {}
        for info in group.list_types(self.case.db):
            if info.resource_class in CLASSES and info.host == 'h1':
                found[info.resource_class] = info.remaining_capacity
        return found

    @initialize(name=st.sampled_from(sorted(CLASSES)),
                then=st.sampled_from(OPENINGS))
    def first_guest(self, name, then):
        """Begin with a GPU in use, or with one that verbs brought back."""
        self.boot(name, activated=True)
        [(_, (number, _), _)] = self.owners.values()
        gpu = next(device for device in self.now() if device.parent is None
                   and self.unit(device)[0] == number)
        # All of it is in use.
        for verb in (self.clean_one, self.release_one, self.retire_one,
                     self.replace_one):
            verb(gpu)
        if then == 'nothing':
            return
        self.end(sorted(self.owners))
        if then == 'retire':
            self.retire_one(gpu)
            self.retire_one(gpu)
            self.release_one(gpu)
        elif then == 'quarantine':
            self.vfs = dict.fromkeys(self.vfs, 0)
            self.report()
            self.quarantine_one(gpu)
            self.quarantine_one(gpu)
            self.vfs = dict.fromkeys(self.vfs, 2)
            self.report()
            self.clean_one(gpu)
        elif then == 'withhold':
            self.quarantine_one(gpu)
            self.vfs = dict.fromkeys(self.vfs, 3)
            self.report()
            for _ in range(3):
                self.boot(name, activated=True)
        elif then == 'exchange':
            self.replace_one(gpu)
            self.vfs = dict.fromkeys(self.vfs, 0)
            self.exchange_card(number)
            self.vfs = dict.fromkeys(self.vfs, 2)
            self.report()
        self.begin_cleaning()

    @rule(name=st.sampled_from(sorted(CLASSES)), activated=st.booleans())
    def boot(self, name, activated):
        remaining = self.remaining().get(name, 0)
        self.instances += 1
        instance = f'i{self.instances}'
        variant, _ = CLASSES[name]
        try:
            granted = claims.claim(self.case.db, claim_obj.ClaimRequest(
                **tenant.TENANT,
                instance_uuid=instance, host='h1',
                request=request_mod.Request(demands=(request_mod.Demand(
                    resource_class=name, count=1),)),
                allocated={naming.provider_uuid(base.NODE, variant): {
                    name: 1}}), lease=60)
        except exception.ClaimDenied as exc:
            assert not remaining, (name, remaining, str(exc))
            return
        assert remaining, name
        [found] = granted.assignments
        device = next(device for device in self.listed()
                      if device.uuid == found.device_uuid)
        unit = self.unit(device)
        self.check_granted(device, unit)
        if device.kind == 'mdev':
            self.mdevs.add(found.uuid)
        if activated:
            claims.activate(self.case.db, [found.uuid])
        self.owners[found.uuid] = instance, unit, device.uuid

    def check_granted(self, device, unit):
        number, index = unit
        gpu = number, WHOLE
        assert not self.draining
        assert unit not in self.disabled, unit
        assert unit not in self.used, (unit, self.used)
        if device.kind == 'mdev' or number == VENDOR:
            assert gpu not in self.disabled
        if device.kind == 'mdev':
            assert not any(unit == gpu and device_uuid != device.uuid
                           and self.is_whole(device_uuid)
                           for _, unit, device_uuid in self.owners.values())
        elif index == WHOLE:
            assert number == MDEV
            assert not self.mdevs
        else:
            assert index < self.vfs[number]

    def is_whole(self, uuid):
        return any(device.uuid == uuid and device.parent is None
                   for device in self.listed())

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def delete(self, data):
        self.end([data.draw(st.sampled_from(sorted(self.owners)))])

    def end(self, uuids):
        for uuid in uuids:
            _, unit, device = self.owners.pop(uuid)
            releases.release(self.case.db, [uuid])
            if self.is_whole(device) or unit[1] != WHOLE:
                self.used.add(unit)

    @rule()
    def begin_cleaning(self):
        for task in cleaning.tasks(self.case.db, 'h1'):
            self.check_can_be_cleaned(task)
            cleaning.started(
                self.case.db, task.device_uuid, task.token, task.token)
            self.running[task.device_uuid] = task

    def check_can_be_cleaned(self, task):
        """Check that a host is asked only for what can pass."""
        device = next(device for device in self.listed()
                      if device.uuid == task.device_uuid)
        if device.kind == 'mdev':
            return
        number, index = self.unit(device)
        if index == WHOLE:
            assert not self.vfs.get(number), (task, 'it has VFs')
            assert number != MDEV or not self.mdevs, (task, 'it has mdevs')
        else:
            assert index < self.vfs[number]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), passed=st.booleans())
    def end_cleaning(self, data, passed):
        """Report a cleaning, which verbs may have overtaken."""
        uuid = data.draw(st.sampled_from(sorted(self.running)))
        task = self.running.pop(uuid)
        device = {device.uuid: device for device in self.listed()}.get(uuid)
        if passed and device is not None and device.kind == 'mdev':
            self.mdevs.discard(task.assignment_uuid)
        try:
            cleaning.finished(
                self.case.db, uuid, task.token, task.steps,
                cleaned.results(task.steps) if passed
                else cleaned.failed('it hangs'))
        except (exception.Conflict, exception.NotFound):
            assert device is None or device.state != 'cleaning'
            return
        if passed and device.kind != 'mdev':
            self.used.discard(self.unit(device))
            self.forget_unseen(self.unit(device))

    @rule(number=WITH_VFS, count=VF_COUNTS)
    def make_vfs(self, number, count):
        """Let a driver remove all VFs, as at a boot, and make others."""
        if any(unit[0] == number for _, unit, _ in self.owners.values()):
            # Guests outlast a boot, and their VFs are made again.
            count = max(count, *(unit[1] + 1 for _, unit, _
                                 in self.owners.values()
                                 if unit[0] == number), 2)
        self.vfs[number] = 0
        self.report()
        self.vfs[number] = count
        self.report()

    @rule()
    def report_again(self):
        self.report()

    @rule(number=GPUS)
    def exchange_card(self, number):
        """Put another card, which nobody knows, in the place of a GPU."""
        if (any(unit[0] == number for _, unit, _ in self.owners.values())
                or any(self.unit(device)[0] == number
                       and device.state == 'cleaning'
                       for device in self.now())):
            return
        self.numbers[number] += 1
        if number == MDEV:
            self.mdevs.clear()
        self.used |= self.units(number)
        self.report()

    # -- what the operator does ---------------------------------------------

    def attempt(self, name, device, call, *arguments):
        """Call a verb; return whether it was not refused."""
        try:
            call(self.case.db, device.uuid, *arguments)
        except exception.InvalidTransition:
            raise
        except exception.Conflict:
            refused = True
        else:
            refused = False
        kind = ('mdev' if device.kind == 'mdev'
                else 'gpu' if device.parent is None else 'vf')
        self.done[name, kind, refused] += 1
        return not refused

    def draw(self, data):
        """Return a device that is there, by its place."""
        devices = {(device.stable_id, device.uuid): device
                   for device in self.now()}
        places = sorted(stable_id for stable_id, _ in devices)
        place = data.draw(st.sampled_from(places))
        return next(device for (stable_id, _), device in devices.items()
                    if stable_id == place)

    def stands_for(self, device):
        """Return the unit of a device, and all units that it stands for."""
        unit = self.unit(device)
        return unit, self.units(unit[0]) if unit[1] == WHOLE else {unit}

    @rule(data=st.data())
    def quarantine(self, data):
        self.quarantine_one(self.draw(data))

    def quarantine_one(self, device):
        _, units = self.stands_for(device)
        if self.attempt('quarantine', device, withdrawal.quarantine, 'loud',
                        OPERATOR):
            # The others are used when their guests end.
            self.used |= units - {
                unit for _, unit, _ in self.owners.values()}

    @rule(data=st.data())
    def clean(self, data):
        self.clean_one(self.draw(data))

    def clean_one(self, device):
        if self.attempt('clean', device, released.clean, OPERATOR):
            self.forget_unseen(self.unit(device))

    @rule(data=st.data())
    def release(self, data):
        self.release_one(self.draw(data))

    def release_one(self, device):
        if self.attempt(
                'release', device, released.release, OPERATOR):
            self.forget_unseen(self.unit(device))

    @rule(data=st.data())
    def retire(self, data):
        self.retire_one(self.draw(data))

    def retire_one(self, device):
        _, units = self.stands_for(device)
        if self.attempt('retire', device, retirement.retire, None,
                        OPERATOR):
            assert not units & {unit for _, unit, _ in self.owners.values()}
            self.used |= units

    @rule(data=st.data())
    def replace(self, data):
        self.replace_one(self.draw(data))

    def replace_one(self, device):
        unit, units = self.stands_for(device)
        if self.attempt('replace', device, retirement.replace, OPERATOR):
            if any(found.uuid == device.uuid and found.state == 'retired'
                   for found in self.now()):
                self.used |= units
            self.forget_unseen(unit)

    @rule(data=st.data(), enabled=st.booleans())
    def set_enabled(self, data, enabled):
        device = self.draw(data)
        _, units = self.stands_for(device)
        if self.attempt('set', device, lambda db, uuid: device_admin.set_(
                db, uuid, OPERATOR, enabled=enabled)):
            (self.disabled.difference_update if enabled
             else self.disabled.update)(units)

    @rule(draining=st.booleans())
    def drain(self, draining):
        host_admin.drain(self.case.db, 'h1', 'op', draining=draining)
        self.draining = draining

    @rule()
    def delete_host(self):
        """Delete the host, which reports again."""
        try:
            host_admin.delete(self.case.db, 'h1')
        except exception.Conflict:
            assert self.owners or self.disabled or any(
                device.state in (*_UNCLEAN, 'retired')
                for device in self.listed())
            return
        self.seen, self.running = set(), {}
        self.used.clear()
        self.report()

    @rule()
    def restore_everything(self):
        """Bring back all that there is, by the verbs of the operator."""
        self.end(sorted(self.owners))
        self.drain(draining=False)
        for number in self.vfs:
            self.vfs[number] = 2
        self.report()
        for _ in range(3):
            for device in self.now():
                if not device.enabled:
                    device_admin.set_(
                        self.case.db, device.uuid, 'op', enabled=True)
                if device.state in ('quarantined', 'retired'):
                    self.try_release(device)
            self.clean_all()
        self.disabled.clear()
        self.used.clear()
        assert {device.state for device in self.now()
                if device.present} == {'available'}, self.shown()
        for name, expected in (('CUSTOM_GPU_MI300X_VF', 2),
                               ('CUSTOM_GPU_T4', 1),
                               ('CUSTOM_VGPU_T4_T4_4Q', 6)):
            assert self.remaining()[name] == expected, (name, self.shown())

    def shown(self):
        """Return what failed assertions show of the devices."""
        return [(device.stable_id[12:], device.kind, device.state,
                 device.present, device.enabled, device.reason)
                for device in self.now()]

    def try_release(self, device):
        try:
            released.release(self.case.db, device.uuid, OPERATOR)
        except exception.Conflict:
            assert any(found.state != device.state for found in self.listed()
                       if found.uuid == device.uuid), device

    def clean_all(self):
        """Pass all cleanings, GPUs after their mdevs."""
        while tasks := cleaning.tasks(self.case.db, 'h1'):
            for task in tasks:
                self.check_can_be_cleaned(task)
                if task.assignment_uuid in self.mdevs:
                    self.mdevs.discard(task.assignment_uuid)
            self.report()
            self.case.clean_all()
        self.running.clear()
        self.report()

    # -- what holds ---------------------------------------------------------

    @invariant()
    def no_device_is_given_twice(self):
        given = claims.of_host(self.case.db, 'h1')
        assert {found.uuid for found in given} == self.owners.keys()
        devices = [found.device_uuid for found in given]
        assert len(devices) == len(set(devices))
        assert {device.uuid for device in self.listed()
                if device.state in ('assigned', 'provisioning')} == set(
                    devices)

    @invariant()
    def parts_of_a_retired_gpu_are_retired(self):
        found = {device.uuid: device for device in self.listed()}
        for device in found.values():
            if device.parent and found[device.parent].state == 'retired':
                assert device.state == 'retired', device
            elif device.state == 'retired' and device.kind == 'pci':
                assert device.parent is None, device


class AnyOrderTest(oslotest_base.BaseTestCase):

    def test_openings_refuse_and_allow_each_verb_and_can_be_undone(self):
        VerbMachine.done.clear()
        for number, then in enumerate(OPENINGS):
            machine = VerbMachine()
            try:
                machine.first_guest(sorted(CLASSES)[number % 4], then)
                machine.restore_everything()
                machine.no_device_is_given_twice()
                machine.parts_of_a_retired_gpu_are_retired()
            finally:
                machine.teardown()
        for name in ('quarantine', 'clean', 'release', 'retire', 'replace'):
            for refused in (False, True):
                self.assertGreater(
                    VerbMachine.done[name, 'gpu', refused], 0, name)

    def test_verbs_on_vgpus_offer_none_that_is_not_clean(self):
        vgpu_base.run_machine(VerbMachine, examples=6, steps=12)
