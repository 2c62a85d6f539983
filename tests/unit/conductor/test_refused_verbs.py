# SPDX-License-Identifier: Apache-2.0
"""Tests of what operators read if a verb is refused."""

import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import tables
from gpgpu_plugin.domain import device as device_rules
from tests.fixtures import released
from tests.fixtures import rows
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base

OPERATOR = 'root@control'
VERBS = {
    'quarantined': lambda db, uuid: withdrawal.quarantine(
        db, uuid, 'loud', OPERATOR),
    'cleaned': lambda db, uuid: released.clean(db, uuid, OPERATOR),
    'released': lambda db, uuid: released.release(
        db, uuid, OPERATOR),
    'retired': lambda db, uuid: retirement.retire(db, uuid, None, 'op'),
    'replaced': lambda db, uuid: retirement.replace(db, uuid, OPERATOR),
    'disabled': lambda db, uuid: device_admin.set_(
        db, uuid, 'op', enabled=False)}
WHAT_ELSE = ('gpgpu-manage', 'migrate or delete', 'name the GPU', 'wait')


class RefusedVerbTest(vgpu_base.VGPUTestCase):

    functions = (vgpu_base.t4(0),)

    def setUp(self):
        super().setUp()
        self.granted = self.ask(Q4=1)
        self.gpu, self.mdev = device_admin.list_all(self.db)

    def set_state(self, device, state):
        """Give a device a state, or the hold that is shown as one."""
        is_held = state in (device_rules.QUARANTINED, device_rules.RETIRED)
        with self.db.writer() as session:
            row = device_db.get(session, device.uuid)
            session.execute(sa.update(device_db.TABLE).where(
                device_db.TABLE.c.id == row.id).values(
                    state='dirty' if is_held else str(state)))
            rows.remove_holds(session, row.id)
            if is_held:
                rows.hold(session, row.id, state, 'loud')

    def assert_explained(self, text, device, asked, state):
        for part in (f'h1 {device.address}', f'cannot be {asked}',
                     f'is {state}' if state is not None else '', device.uuid):
            self.assertIn(part, text)
        self.assertTrue(any(part in text for part in WHAT_ELSE), text)
        for event in device_rules.DeviceEvent:
            if '_' in event:
                self.assertNotIn(event, text)

    def test_refusals_name_verb_device_state_and_what_else_to_do(self):
        refused = set()
        for state in (*device_rules.DeviceState, device_rules.QUARANTINED,
                      device_rules.RETIRED):
            for asked, verb in VERBS.items():
                with self.subTest(f'{asked} {state}'):
                    self.set_state(self.gpu, state)
                    try:
                        verb(self.db, self.gpu.uuid)
                    except exception.Conflict as exc:
                        text = str(exc)
                        refused.add((asked, str(state)))
                        # An instance has a vGPU of the GPU.
                        device, shown = ((self.mdev, 'provisioning')
                                         if 'instance i1' in text
                                         else (self.gpu, state))
                        self.assert_explained(
                            text, device, 'released' if asked == 'cleaned'
                            and state not in tuple(device_rules.DeviceState)
                            else asked, shown)
        for pair in (('released', 'available'), ('released', 'dirty'),
                     ('quarantined', 'quarantined'), ('retired', 'retired'),
                     ('cleaned', 'available'), ('replaced', 'available')):
            self.assertIn(pair, refused)

    def test_refusals_for_an_mdev_name_its_gpu(self):
        for asked, verb in VERBS.items():
            with self.subTest(asked):
                text = str(self.assertRaises(
                    exception.Conflict, verb, self.db, self.mdev.uuid))
                self.assertIn('h1 0000:00:00.0', text)
                self.assertIn(f'cannot be {asked}', text)
                self.assertIn('provisioning', text)


class TransitionTest(base.ConductorTestCase):
    """Events that no verb checks before."""

    functions = (base.function(0),)

    def test_refused_events_name_device_state_and_what_else_to_do(self):
        for state in device_rules.DeviceState:
            for event in device_rules.DeviceEvent:
                if (state, event) in device_rules.TRANSITIONS:
                    continue
                with self.subTest(f'{event} {state}'), self.db.writer() as s:
                    row = s.execute(sa.select(tables.DEVICES)).one()
                    s.execute(sa.update(tables.DEVICES).values(
                        state=str(state)))
                    exc = self.assertRaises(
                        exception.InvalidTransition, rows.apply, s,
                        row.uuid, event)
                    asked = device_rules.ASKED[event]
                    self.assertIn(
                        f'device h1 0000:00:00.0 ({row.uuid}): it cannot be '
                        f'{asked}, since it is {state}', str(exc))
                    self.assertIn(device_rules.ADVICE[state], str(exc))
