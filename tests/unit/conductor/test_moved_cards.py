# SPDX-License-Identifier: Apache-2.0
"""Tests of cards that are found in another place than before."""

import datetime
import logging
import time
import uuid
from unittest import mock

import fixtures
import sqlalchemy as sa

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import moved_cards
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import reports
from gpgpu_plugin.conductor import retirement
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import withdrawal
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import host as host_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.db import card as card_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import machine
from gpgpu_plugin.objects import admin
from tests.fixtures import cleaned
from tests.fixtures import hosts
from tests.unit.conductor import base
from tests.unit.conductor import test_withdrawal
from tests.unit.conductor import vgpu_base

OPERATOR = test_withdrawal.OPERATOR
DSN = '48-b0-2d-00-00-00-00-99'
OTHER = '48-b0-2d-00-00-00-00-77'


class MovedCase(test_withdrawal.WithdrawalCase):

    functions = (base.function(0, dsn=DSN),)

    def report(self, host, *functions):
        hosts.store(self.db, base.scan(
            functions, host=host, node_uuid=base.node_uuid(host)
            if host != 'h1' else base.NODE))

    def heard(self, host, seconds):
        """Let a host have called some seconds ago."""
        with self.db.writer() as session:
            session.execute(sa.update(models.Host).where(
                models.Host.name == host).values(
                    heard_at=time.time() - seconds, report_number=1))

    def switch_off(self, host='h1'):
        self.heard(host, 100000)

    def move(self, host='h2', number=0, **facts):
        """Move the card from h1, which is switched off."""
        self.switch_off()
        self.report(host, base.function(number, **{'dsn': DSN, **facts}))
        return self.on(host)

    def boot_h1(self, boot_id):
        """Begin a session of h1 by another start of nova-compute."""
        with self.db.reader() as session:
            expected = session.scalar(sa.select(models.Host.session).where(
                models.Host.name == 'h1'))
        hosts.begin(
            self.db, 'h1', base.NODE, start_uuid=str(uuid.uuid4()),
            expected=expected, identity=machine.MachineIdentity(
                boot_id=boot_id, machine_id='h1'))

    def on(self, host):
        """Return the only GPU that a host reports now."""
        [device] = [device for device in device_admin.list_all(
            self.db, host, include_retired=True)
            if device.present and device.parent is None]
        return device

    def later(self):
        """Let all that has happened to cards have happened earlier."""
        earlier = datetime.timedelta(seconds=10)
        with self.db.writer() as session:
            for row in session.scalars(sa.select(models.Assignment)):
                row.claimed_at -= earlier
                row.ended_at = row.ended_at and row.ended_at - earlier
            for row in session.scalars(sa.select(models.Card)):
                row.found_at = row.found_at and row.found_at - earlier
            for row in session.scalars(sa.select(models.Device)):
                row.swapped_at = row.swapped_at and row.swapped_at - earlier
            for row in session.scalars(sa.select(models.Event)):
                row.at -= earlier

    def details(self):
        return [detail for _, detail in self.events('moved')]

    def use(self):
        """Have an instance use the card, and end."""
        releases.release(self.db, base.uuids(self.boot()))


class AssignedCardMissingTest(MovedCase):
    """A card that an instance has left its place, and shows no number."""

    functions = (base.function(0, dsn=None),)
    PLACE = {'id': '/devices/pci0000:40/01.0/00.0', 'address': '0000:40:00.0'}

    def at_other_place(self, *more, **facts):
        """Report a card at another place; return it."""
        self.report('h1', base.function(0, **{
            'dsn': None, **self.PLACE, **facts}), *more)
        [device] = [device for device in device_admin.list_all(self.db, 'h1')
                    if device.address == '0000:40:00.0'
                    and device.parent is None]
        return device

    def test_card_of_its_model_is_held_until_the_operator_releases_it(self):
        self.boot()
        device = self.at_other_place()
        self.assertEqual('quarantined', device.state)
        for word in ('instance i1', '0000:00:00.0, which is missing',
                     '"gpgpu-manage device release h1 0000:40:00.0"'):
            self.assertIn(word, device.reason)
        self.assertRaises(exception.ClaimDenied, self.boot, instance='i2')
        self.assertEqual(1, len(self.events('quarantine')))
        cleaning.operator_release(self.db, device.uuid, OPERATOR)
        self.clean_all()
        for _ in range(2):
            self.assertEqual('available', self.at_other_place().state)

    def test_card_is_held_if_another_device_is_in_the_old_place(self):
        self.boot()
        self.assertEqual('quarantined', self.at_other_place(
            base.function(0, dsn=None, device='26b9')).state)

    def test_card_whose_number_the_missing_one_may_have_is_held(self):
        self.boot()
        self.assertEqual('quarantined', self.at_other_place(dsn=DSN).state)

    def test_card_of_another_model_is_available(self):
        self.boot()
        self.assertEqual(
            'available', self.at_other_place(subsystem='1234').state)

    def test_card_with_another_number_is_available(self):
        self.report('h1', base.function(0, dsn=OTHER))
        self.boot()
        self.assertEqual('available', self.at_other_place(dsn=DSN).state)

    def test_card_is_available_if_no_instance_has_the_missing_one(self):
        self.assertEqual('available', self.at_other_place().state)

    def test_card_that_returns_to_its_place_meanwhile_is_not_held(self):
        # As after the reset of a switch, whose slots come one by one.
        self.at_other_place(*self.functions)
        first = self.boot(instance='i1')
        [place] = [one.address for one in first.assignments]
        functions = (*self.functions, base.function(0, dsn=None, **self.PLACE))
        self.report('h1')
        # The one that is not assigned.
        self.report('h1', *(function for function in functions
                            if function.address != place))
        self.assertEqual({'assigned', 'available'}, {
            device.state for device in device_admin.list_all(self.db, 'h1')})
        self.report('h1')
        self.report('h1', *(function for function in functions
                            if function.address == place))
        self.assertEqual([(place, 'assigned', None)], [
            (device.address, device.state, device.reason)
            for device in device_admin.list_all(self.db, 'h1')
            if device.present])


class OtherHostTest(MovedCase):

    def test_clean_card_is_offered_on_its_new_host(self):
        self.assertEqual('available', self.move().state)
        self.assertEqual([], self.details())
        self.boot(host='h2')

    def test_dirty_card_is_cleaned_on_its_new_host(self):
        self.use()
        moved = self.move()
        self.assertEqual('dirty', moved.state)
        self.assertEqual(
            ['it was at 0000:00:00.0 of h1, where it was dirty'],
            self.details())
        [task] = cleaning.tasks(self.db, 'h2')
        self.assertEqual(moved.uuid, task.device_uuid)
        self.clean_all()
        self.boot(host='h2')

    def test_card_whose_guest_was_lost_with_its_host_is_cleaned(self):
        self.boot()
        self.assertEqual('dirty', self.move().state)
        self.assertEqual('assigned', self.on('h1').state)

    def test_quarantined_card_stays_so_until_the_operator_accepts_it(self):
        self.quarantine(self.first().uuid)
        before = 'h1'
        for call in (withdrawal.clean, cleaning.operator_release):
            moved = self.move(call.__name__)
            self.assertEqual('quarantined', moved.state)
            self.assertIn(f'it was at 0000:00:00.0 of {before}, where it was '
                          f'quarantined', moved.reason)
            self.assertIn('fan is loud', moved.reason)
            self.assertEqual(['quarantined'], self.verdicts(moved.uuid))
            call(self.db, moved.uuid, OPERATOR)
            self.clean_all()
            self.assertEqual(
                'available', device_admin.show(self.db, moved.uuid).state)
            # Where it was last, it is quarantined again.
            self.quarantine(moved.uuid)
            before = call.__name__
            self.switch_off(before)

    def test_retired_card_stays_retired(self):
        retirement.retire(self.db, self.first().uuid, 'RMA 0815')
        moved = self.move()
        self.assertEqual('retired', moved.state)
        self.assertIn('RMA 0815', moved.reason)
        cleaning.operator_release(self.db, moved.uuid, OPERATOR)
        self.clean_all()
        self.boot(host='h2')

    def test_disabled_card_is_enabled_by_the_operator(self):
        device_admin.set_(self.db, self.first().uuid, enabled=False)
        moved = self.move()
        self.assertEqual(('available', False), (moved.state, moved.enabled))
        device_admin.set_(self.db, moved.uuid, enabled=True)
        self.boot(host='h2')

    def test_last_place_counts(self):
        self.use()
        self.move('h2')
        self.clean_all()
        self.switch_off('h2')
        # On h1 it is dirty still, but it was clean later.
        self.assertEqual('available', self.move('h3').state)

    def test_card_that_returns_is_what_it_became_elsewhere(self):
        self.report('h1')
        self.move('h2')
        self.quarantine(self.on('h2').uuid)
        self.report('h2')
        self.report('h1', *self.functions)
        self.assertEqual('quarantined', self.on('h1').state)
        self.assertIn('of h2', self.on('h1').reason)

    def test_card_that_was_accepted_is_not_withheld_when_it_returns(self):
        self.quarantine(self.first().uuid)
        moved = self.move()
        self.clean(moved.uuid)
        self.clean_all()
        self.report('h2')
        self.report('h2', base.function(0, dsn=DSN))
        self.assertEqual('available', self.on('h2').state)

    def test_gpu_of_a_board_returns_while_another_is_retired(self):
        board = [base.function(number, dsn=None, serial='board')
                 for number in range(4)]
        self.report('h2', *board)
        retirement.retire(self.db, next(
            device.uuid for device in device_admin.list_all(self.db, 'h2')
            if device.address == board[3].address), None)
        self.report('h2')
        self.report('h2', board[0])
        self.assertEqual('available', self.on('h2').state)

    def test_card_is_recognised_whatever_the_case_of_its_number(self):
        self.report('h2', base.function(0, dsn=None, serial='pn-12ab '))
        self.quarantine(self.on('h2').uuid)
        self.switch_off('h2')
        self.report('h3', base.function(0, dsn=None, serial='PN-12AB '))
        self.assertEqual('quarantined', self.on('h3').state)
        self.clean(self.on('h3').uuid)
        self.clean_all()
        # It is no other card in its own place, either.
        self.report('h3', base.function(0, dsn=None, serial='pn-12Ab '))
        self.assertEqual('available', self.on('h3').state)

    def test_card_is_recognised_by_one_number_that_becomes_readable(self):
        self.use()
        self.assertEqual('available', self.move(dsn=None).state)
        self.assertEqual('dirty', self.move(dsn=DSN).state)

    def test_replacement_that_is_quarantined_elsewhere_is_not_offered(self):
        self.quarantine(self.first().uuid)
        self.report('h2', base.function(0, dsn=OTHER))
        retirement.replace(self.db, self.on('h2').uuid, OPERATOR)
        self.assertEqual('quarantined', self.move().state)

    def test_card_whose_place_another_took_is_recognised(self):
        self.quarantine(self.first().uuid)
        self.report('h1', base.function(0, dsn=OTHER))
        self.report('h2', base.function(0, dsn=DSN))
        self.assertEqual('quarantined', self.on('h2').state)

    def test_card_that_was_replaced_is_recognised(self):
        self.quarantine(self.first().uuid)
        self.report('h1', base.function(0, dsn=OTHER))
        retirement.replace(self.db, self.first().uuid, OPERATOR)
        self.report('h2', base.function(0, dsn=DSN))
        self.assertEqual('retired', self.on('h2').state)

    def test_clean_card_whose_place_another_took_is_cleaned(self):
        self.report('h1', base.function(0, dsn=OTHER))
        self.assertEqual('quarantined', self.on('h1').state)
        self.report('h2', base.function(0, dsn=DSN))
        self.assertEqual('dirty', self.on('h2').state)

    def test_card_that_nobody_accepted_is_recognised_in_a_third_place(self):
        self.report('h1', base.function(0, dsn=OTHER))
        self.switch_off()
        self.report('h3', base.function(0, dsn=OTHER))
        moved = self.on('h3')
        self.assertEqual('quarantined', moved.state)
        self.assertIn('it was at 0000:00:00.0 of h1, where it was quarantined'
                      ': another device is in its place', moved.reason)
        # What the operator decides there counts from then on.
        self.clean(moved.uuid)
        self.clean_all()
        self.switch_off('h3')
        self.report('h4', base.function(0, dsn=OTHER))
        self.assertEqual('available', self.on('h4').state)

    def test_card_that_returns_from_a_place_of_another_is_quarantined(self):
        self.report('h2', base.function(0, dsn=OTHER))
        self.report('h2')
        self.later()
        self.report('h1', base.function(0, dsn=OTHER))
        self.switch_off()
        self.report('h2', base.function(0, dsn=OTHER))
        self.assertEqual('quarantined', self.on('h2').state)

    def test_card_that_an_operator_accepts_is_judged_once(self):
        # Found after the card whose place it takes.
        for number, call in enumerate((
                cleaning.operator_release, retirement.replace)):
            came = f'48-b0-2d-00-00-00-01-{number:02x}'
            with self.subTest(call.__name__):
                where = f'elsewhere {number}'
                self.report(where, base.function(0, dsn=came))
                self.quarantine(self.on(where).uuid)
                self.switch_off(where)
                self.report('h1', base.function(0, dsn=came))
                found = self.on('h1')
                self.assertEqual('quarantined', found.state)
                self.assertIn(f'of {where}, where it was quarantined',
                              found.reason)
                call(self.db, found.uuid, OPERATOR)
                self.report('h1', base.function(
                    0, dsn=came, driver='nvidia'))
                self.assertEqual('dirty', self.on('h1').state)
                self.clean_all()
                self.assertEqual('available', self.on('h1').state)

    def test_cards_without_or_with_another_number_are_not_recognised(self):
        self.use()
        for facts in ({'dsn': None}, {'dsn': OTHER},
                      {'dsn': '00-00-00-00-00-00-00-00'},
                      {'serial': 'same', 'device': '2331'}):
            with self.subTest(facts):
                self.assertEqual('available', self.move(
                    str(facts), **facts).state)

    def test_number_of_very_many_hosts_identifies_none(self):
        self.useFixture(fixtures.MockPatchObject(card_db, 'MOST', 2))
        retirement.retire(self.db, self.first().uuid, None)
        self.assertEqual('retired', self.move('h2').state)
        # Now one more has it than may have it.
        moved = self.move('h3')
        self.assertEqual('dirty', moved.state)
        self.assertIn('more than 2 hosts', self.details()[-1])
        self.clean_all()
        self.report('h3', base.function(0, dsn=DSN, driver='nvidia'))
        self.assertEqual('available', self.on('h3').state)
        self.report('h3')
        self.report('h3', base.function(0, dsn=DSN))
        self.assertEqual('dirty', self.on('h3').state)

    def test_card_is_recognised_by_its_other_number(self):
        self.useFixture(fixtures.MockPatchObject(card_db, 'MOST', 3))
        for host in ('h3', 'h4', 'h5'):
            self.report(host, base.function(0, dsn=None, serial='same'))
        moved = self.move('h2', serial='same')
        self.assertEqual('available', moved.state)
        retirement.retire(self.db, moved.uuid, None)
        self.switch_off('h2')
        self.assertEqual('retired', self.move('h6', serial='same').state)

    def test_reports_without_news_cost_no_further_statement(self):
        found = []
        for _ in range(3):
            with self.statements() as statements:
                self.report('h1', *self.functions)
            found = [text for text in statements if 'card_numbers' in text]
        self.assertEqual([], found)


class RebootCase(MovedCase):
    """The host of a card boots."""

    def setUp(self):
        super().setUp()
        # What it reports is no news.
        self.boot_h1('boot 1')
        for number in (1, 2):
            reports.report(self.db, base.scan(self.functions, number=number))

    def put_back(self, boot_id='boot 2'):
        """Have h1 report the card, which it never missed."""
        self.switch_off('h2')
        self.boot_h1(boot_id)
        with self.statements() as statements:
            reports.report(self.db, base.scan(self.functions, number=1))
        return [text for text in statements if 'card_numbers' in text]


class RebootTest(RebootCase):
    """A card is used elsewhere while its host is off, and put back."""

    def setUp(self):
        super().setUp()
        self.move()

    def test_card_that_was_used_elsewhere_is_cleaned(self):
        claim = self.claim(host='h2')
        claims.activate(self.db, base.uuids(claim))
        releases.release(self.db, base.uuids(claim))
        self.put_back()
        self.assertEqual('dirty', self.on('h1').state)

    def test_card_that_was_quarantined_elsewhere_is_so(self):
        self.quarantine(self.on('h2').uuid)
        self.put_back()
        self.assertEqual('quarantined', self.on('h1').state)
        # It was seen elsewhere before the operator accepts it.
        self.clean(self.on('h1').uuid)
        self.clean_all()
        self.put_back('boot 3')
        self.assertEqual('available', self.on('h1').state)

    def test_card_that_was_quarantined_there_during_its_use_is_so(self):
        claim = self.claim(host='h2')
        claims.activate(self.db, base.uuids(claim))
        self.quarantine(self.on('h2').uuid)
        releases.release(self.db, base.uuids(claim))
        self.assertEqual('quarantined', self.on('h2').state)
        self.put_back()
        self.assertEqual('quarantined', self.on('h1').state)

    def test_card_that_was_to_be_quarantined_after_its_use_is_so(self):
        claim = self.claim(host='h2')
        claims.activate(self.db, base.uuids(claim))
        self.quarantine(self.on('h2').uuid)
        self.put_back()
        self.assertEqual('quarantined', self.on('h1').state)

    def test_card_with_a_number_of_very_many_hosts_is_not_cleaned(self):
        self.useFixture(fixtures.MockPatchObject(card_db, 'MOST', 0))
        self.put_back()
        self.assertEqual('available', self.on('h1').state)

    def test_restart_of_nova_compute_is_no_boot(self):
        self.quarantine(self.on('h2').uuid)
        self.assertEqual([], self.put_back('boot 1'))
        self.assertEqual('available', self.on('h1').state)


class RebootBesideForeignNumberTest(RebootCase):
    """Another host showed the number of a card that h1 has all the time."""

    def setUp(self):
        super().setUp()
        self.report('m', *self.functions)
        claim = self.claim(host='m')
        releases.abort(self.db, base.uuids(claim), touched=True,
                       fault='made up')
        self.assertEqual('quarantined', self.on('m').state)

    def assert_cleaned(self):
        self.boot_h1('boot 2')
        reports.report(self.db, base.scan(self.functions, number=1))
        self.assertEqual('dirty', self.on('h1').state)
        self.assertIn('of m, where it was quarantined: made up',
                      self.details()[-1])
        self.clean_all()
        self.assertEqual('available', self.on('h1').state)

    def test_card_that_another_host_quarantined_is_cleaned(self):
        self.report('m')
        self.assert_cleaned()

    def test_card_does_not_wait_for_what_can_only_have_it_cleaned(self):
        self.heard('m', 0)
        self.assert_cleaned()
        self.report('m')
        moved_cards.decide(self.db, moved_cards.SILENT_AFTER)
        self.assertEqual('available', self.on('h1').state)

    def test_card_that_an_operator_quarantined_there_stays_so(self):
        self.clean(self.on('m').uuid)
        self.clean_all()
        self.quarantine(self.on('m').uuid)
        self.switch_off('m')
        self.boot_h1('boot 2')
        reports.report(self.db, base.scan(self.functions, number=1))
        self.assertEqual('quarantined', self.on('h1').state)

    def test_card_that_was_missing_is_quarantined(self):
        self.switch_off('m')
        for number, functions in ((3, ()), (4, self.functions)):
            reports.report(self.db, base.scan(functions, number=number))
        self.assertEqual('quarantined', self.on('h1').state)


class RebootAfterExchangeTest(RebootCase):
    """A card came elsewhere in the place of another, and was put back."""

    def assert_accepted_once(self):
        self.later()
        self.switch_off()
        self.report('h2', *self.functions)
        self.assertEqual('quarantined', self.on('h2').state)
        self.put_back()
        self.assertEqual('dirty', self.on('h1').state)
        self.clean_all()
        for boot in ('boot 3', 'boot 4'):
            self.later()
            self.put_back(boot)
            self.assertEqual('available', self.on('h1').state)

    def test_place_of_a_quarantined_card(self):
        self.report('h2', base.function(0, dsn=OTHER))
        self.quarantine(self.on('h2').uuid)
        self.assert_accepted_once()

    def test_place_of_an_available_card(self):
        self.report('h2', base.function(0, dsn=OTHER))
        self.assert_accepted_once()


class LiveHostTest(MovedCase):
    """Two hosts that may both be alive show the same number."""

    def wait(self):
        """Quarantine the card of h1, and find its number on h2."""
        self.quarantine(self.first().uuid)
        self.heard('h1', 300)
        self.report('h2', base.function(0, dsn=DSN))
        self.assertEqual('dirty', self.on('h2').state)
        self.assertIn('Host h1 may be alive', self.details()[0])
        for shown in (self.on('h2'), self.shown(self.on('h2').uuid)):
            self.assertIn('waits until h1 reports', shown.reason)
            self.assertIn('0000:00:00.0 of h1', shown.reason)
            self.assertIn('gpgpu-manage device clean', shown.reason)
        # Neither quarantined nor offered nor cleaned.
        self.decide()
        self.assertEqual([], self.notified)
        self.assertEqual((), cleaning.tasks(self.db, 'h2'))

    def decide(self):
        self.notified = []
        moved_cards.decide(
            self.db, moved_cards.SILENT_AFTER, self.notified.append)

    def test_card_is_another_one_if_its_host_calls_later(self):
        self.wait()
        self.heard('h1', -100)
        self.decide()
        self.assertEqual(['h2'], self.notified)
        self.assertIsNone(self.on('h2').reason)
        self.assertIn('another card with the same number', self.details()[1])
        self.clean_all()
        self.assertEqual('available', self.on('h2').state)
        self.assertEqual('quarantined', self.on('h1').state)
        # And nothing changes any more, whoever reports.
        for _ in range(2):
            self.decide()
            self.report('h1', base.function(0, dsn=DSN, driver='nvidia'))
            self.report('h2', base.function(0, dsn=DSN, driver='nvidia'))
        self.assertEqual(('quarantined', 'available'), (
            self.on('h1').state, self.on('h2').state))
        self.assertEqual(2, len(self.details()))

    def test_card_was_moved_if_its_host_has_it_no_longer(self):
        self.wait()
        self.report('h1')
        self.decide()
        self.assertEqual(['h2'], self.notified)
        self.assertEqual('quarantined', self.on('h2').state)
        self.assertIn('fan is loud', self.on('h2').reason)

    def test_card_was_moved_if_its_host_has_another_in_its_place(self):
        self.wait()
        self.report('h1', base.function(0, dsn=OTHER))
        self.heard('h1', -100)
        self.decide()
        self.assertEqual('quarantined', self.on('h2').state)

    def test_card_still_waits_when_it_returns(self):
        self.wait()
        self.report('h2')
        self.report('h2', base.function(0, dsn=DSN))
        self.decide()
        self.assertEqual((), cleaning.tasks(self.db, 'h2'))
        self.assertEqual('dirty', self.on('h2').state)

    def test_card_was_moved_if_its_host_is_silent(self):
        self.wait()
        self.switch_off()
        self.decide()
        self.assertEqual('quarantined', self.on('h2').state)

    def wait_for_two(self):
        """Let h2 and h3 have a card each that h1 had quarantined."""
        self.report('h1', base.function(0, dsn=DSN),
                    base.function(1, dsn=OTHER))
        for device in device_admin.list_all(self.db, 'h1'):
            self.quarantine(device.uuid)
        self.report('h2', base.function(0, dsn=DSN))
        self.report('h3', base.function(0, dsn=OTHER))
        self.switch_off()

    def test_card_that_cannot_be_decided_holds_up_no_other(self):
        self.wait_for_two()
        write, log = self.db.write, self.useFixture(fixtures.FakeLogger(
            level=logging.WARNING))
        away = exception.DatabaseUnavailable(reason='gone')
        with mock.patch.object(self.db, 'write', side_effect=[
                away, mock.DEFAULT], wraps=write):
            self.decide()
        self.assertEqual(('dirty', 'quarantined'), (
            self.on('h2').state, self.on('h3').state))
        [line] = [text for text in log.output.splitlines()
                  if 'Cannot decide' in text]
        self.assertIn(self.on('h2').uuid, line)
        with mock.patch.object(self.db, 'reader', side_effect=away):
            self.decide()
        self.decide()
        self.assertEqual('quarantined', self.on('h2').state)

    def test_card_whose_host_is_deleted_meanwhile_holds_up_no_other(self):
        self.wait_for_two()
        gone = exception.NotFound(kind='device', name='x')
        with mock.patch.object(self.db, 'write', side_effect=[
                gone, mock.DEFAULT], wraps=self.db.write):
            self.decide()
        self.assertEqual('quarantined', self.on('h3').state)

    def test_operator_need_not_wait(self):
        self.wait()
        self.clean(self.on('h2').uuid)
        self.clean_all()
        self.assertEqual('available', self.on('h2').state)

    def test_host_that_was_deleted_is_not_waited_for(self):
        self.wait()
        host_admin.delete(self.db, 'h1', force=True)
        self.decide()
        self.clean_all()
        self.assertEqual('available', self.on('h2').state)

    def test_number_of_several_cards_names_none(self):
        self.report('h2', base.function(0, dsn=DSN))
        self.quarantine(self.first().uuid)
        self.report('h3', base.function(0, dsn=DSN))
        self.report('h4', *(base.function(number, dsn=DSN)
                            for number in range(4)))
        self.assertEqual(
            {'h1': 'quarantined', 'h2': 'available', 'h3': 'dirty'},
            {host: self.on(host).state for host in ('h1', 'h2', 'h3')})
        # They may be any of those, and are cleaned.
        self.assertEqual({'dirty'}, {
            device.state for device in device_admin.list_all(self.db, 'h4')})
        self.assertIn('Several cards have this number', self.details()[0])
        self.clean_all()
        self.assertEqual({'available'}, {
            device.state for device in device_admin.list_all(self.db, 'h4')})

    def test_card_is_cleaned_if_its_number_names_others_too(self):
        self.use()
        self.switch_off()
        # One with the number is alive, and another one was not clean.
        self.report('h2', base.function(0, dsn=DSN))
        self.clean_all()
        self.quarantine(self.on('h2').uuid)
        self.heard('h2', 100)
        self.report('h3', base.function(0, dsn=DSN))
        moved_cards.decide(self.db, 50)
        self.clean(self.on('h3').uuid)
        self.clean_all()
        self.assertEqual('available', self.on('h3').state)
        self.report('h4', base.function(0, dsn=DSN))
        self.assertEqual('dirty', self.on('h4').state)

    def test_board_whose_gpus_have_one_number_is_cleaned(self):
        board = [base.function(number, dsn=None, serial='board')
                 for number in range(4)]
        self.report('h2', *board)
        releases.release(self.db, base.uuids(self.boot(host='h2')))
        self.switch_off('h2')
        self.report('h3', *board)
        self.assertEqual({'dirty'}, {
            device.state for device in device_admin.list_all(self.db, 'h3')})
        self.clean_all()
        self.boot(4, host='h3')


class ForeignNumberCase(MovedCase):
    """A host that has another card shows the number of a card of h1."""

    def show(self, *functions):
        """Have the host m report a card with the number, as its own."""
        self.report('m', *functions or self.functions)
        self.heard('h1', -100)
        moved_cards.decide(self.db, moved_cards.SILENT_AFTER)
        self.later()

    def forge(self, *functions):
        """Have m show the number, say that its card is clean, and hide it."""
        self.heard('h1', 0)
        self.show(*functions)
        self.clean_on('m')
        self.assertEqual({'available'}, {
            device.state for device in device_admin.list_all(self.db, 'm')})
        self.report('m')
        self.later()

    def move_now(self, *functions):
        """Move the card from h1, which called until then."""
        self.heard('h1', 0)
        hosts.begin(self.db, 'h2', base.node_uuid('h2'))
        reports.report(self.db, base.scan(
            functions or self.functions, host='h2',
            node_uuid=base.node_uuid('h2'), number=1), silent_after=0)
        return self.on('h2')

    def clean_on(self, host):
        for task in cleaning.tasks(self.db, host):
            cleaning.started(self.db, task.device_uuid, task.token, 'attempt')
            cleaning.finished(self.db, task.device_uuid, 'attempt',
                              task.steps, cleaned.results(task.steps))


class ForeignNumberTest(ForeignNumberCase):

    def test_card_that_another_host_says_it_cleaned_is_cleaned(self):
        self.use()
        self.later()
        self.forge()
        self.assertEqual('dirty', self.move_now().state)

    def test_card_that_is_used_while_another_host_shows_it_is_cleaned(self):
        self.later()
        self.show()
        self.use()
        self.assertEqual('dirty', self.move_now().state)

    def check_cleaned_on_m_is_clean_on_h2(self):
        self.later()
        self.report('m', *self.functions)
        self.assertEqual('dirty', self.on('m').state)
        self.clean_on('m')
        self.report('m')
        # It was off at no time.
        self.heard('h1', 0)
        self.report('h2', *self.functions)
        self.assertEqual('available', self.on('h2').state)

    def test_card_that_was_missing_when_it_was_cleaned_is_clean(self):
        self.use()
        self.report('h1')
        self.check_cleaned_on_m_is_clean_on_h2()

    def test_card_that_was_elsewhere_while_its_place_had_another(self):
        self.use()
        self.report('h1', base.function(0, dsn=OTHER))
        self.check_cleaned_on_m_is_clean_on_h2()

    def test_card_that_returns_is_not_clean_by_an_earlier_absence(self):
        self.report('h1')
        self.report('h1', *self.functions)
        self.later()
        self.use()
        self.later()
        self.forge()
        self.assertEqual('dirty', self.move_now().state)

    def test_card_is_cleaned_while_another_host_shows_the_number(self):
        self.use()
        self.later()
        self.forge()
        self.report('m', *self.functions)
        self.heard('m', -100)
        self.assertEqual('dirty', self.move_now().state)


    def test_number_that_another_host_shows_very_often_is_looked_up(self):
        self.use()
        self.later()
        self.report('m', *(base.function(
            0, id=f'/devices/pci0000:{number:02x}/01.0/00.0', dsn=DSN,
            address=f'0000:{number:02x}:00.0')
            for number in range(card_db.MOST + 1)))
        self.assertEqual('dirty', self.move('h2').state)
        self.switch_off('h2')
        self.report('m')
        self.assertEqual('dirty', self.move('h3').state)


class VGPUTest(MovedCase):
    """Cards whose VFs or mdevs guests have used."""

    variant = False
    functions = ()

    def setUp(self):
        super().setUp()
        variant_admin.create(self.db, admin.VariantInfo(
            name='MI300X-VF', vendor='10de', device='74b5'))
        self.gpu = base.function(
            0, device='74a1', dsn=DSN, used_by='vf', sriov_totalvfs=2,
            sriov_numvfs=2)
        self.vfs = [base.function(
            0, id=f'{self.gpu.id}/vf{number}', device='74b5', dsn=None,
            address=f'0000:00:00.{number + 1}', pf=self.gpu.id,
            vf_index=number) for number in range(2)]
        self.report('h1', self.gpu, *self.vfs)

    def use(self):
        claim = self.claim(variant='MI300X-VF')
        claims.activate(self.db, base.uuids(claim))
        releases.release(self.db, base.uuids(claim))

    def states(self, host):
        return [device.state for device in device_admin.list_all(
            self.db, host, include_retired=True)]

    def test_vfs_of_a_card_with_a_dirty_vf_are_cleaned(self):
        self.use()
        self.switch_off()
        self.report('h2', self.gpu, *self.vfs)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h2'))
        self.assertEqual(2, len(cleaning.tasks(self.db, 'h2')))

    def test_vfs_that_the_new_host_makes_later_are_cleaned(self):
        self.use()
        self.switch_off()
        self.report('h2', base.function(
            0, device='74a1', dsn=DSN, sriov_totalvfs=2))
        # Nobody can get the GPU itself.
        self.assertEqual(['available'], self.states('h2'))
        self.report('h2', self.gpu, *self.vfs)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h2'))

    def test_vfs_that_the_new_host_makes_one_by_one_are_cleaned(self):
        self.use()
        self.switch_off()
        self.report('h2', base.function(
            0, device='74a1', dsn=DSN, sriov_totalvfs=2))
        self.report('h2', self.gpu, self.vfs[0])
        self.report('h2', self.gpu, *self.vfs)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h2'))

    def test_operator_ends_the_wait_of_a_card_by_one_of_its_vfs(self):
        self.use()
        self.heard('h1', 300)
        self.report('h2', self.gpu, *self.vfs)
        [vf, _] = [device for device in device_admin.list_all(self.db, 'h2')
                   if device.parent]
        self.assertIn('ends the wait', vf.reason)
        withdrawal.clean(self.db, vf.uuid, OPERATOR)
        self.assertEqual(2, len(cleaning.tasks(self.db, 'h2')))

    def test_further_vfs_of_a_card_that_waits_are_not_offered(self):
        self.quarantine(self.first().uuid)
        self.report('h2', self.gpu, *self.vfs)
        self.assertEqual(['available', 'dirty', 'dirty'], self.states('h2'))
        self.report('h2', self.gpu, *self.vfs, *(
            base.function(
                0, id=f'{self.gpu.id}/vf{number}', device='74b5', dsn=None,
                address=f'0000:00:00.{number + 1}', pf=self.gpu.id,
                vf_index=number) for number in (2, 3)))
        self.assertEqual(['available', *['dirty'] * 4], self.states('h2'))
        self.assertEqual((), cleaning.tasks(self.db, 'h2'))

    def test_vfs_are_quarantined_and_retired_with_the_card(self):
        gpu = self.first().uuid
        self.quarantine(gpu)
        self.switch_off()
        self.report('h2', self.gpu, *self.vfs)
        self.assertEqual(['quarantined'] * 3, self.states('h2'))
        retirement.retire(self.db, device_admin.list_all(
            self.db, 'h2')[0].uuid, None)
        self.switch_off('h2')
        self.report('h3', self.gpu, *self.vfs)
        self.assertEqual(['retired'] * 3, self.states('h3'))


class MdevTest(vgpu_base.VGPUTestCase):

    functions = (vgpu_base.t4(0, dsn=DSN),)

    def test_card_whose_mdev_was_used_is_cleaned(self):
        self.ask(Q4=1)
        with self.db.writer() as session:
            session.execute(sa.update(models.Host).values(heard_at=1.0))
        hosts.store(self.db, base.scan(
            self.functions, host='h2', node_uuid=base.node_uuid('h2')))
        [gpu] = device_admin.list_all(self.db, 'h2')
        self.assertEqual('dirty', gpu.state)


class RestoreTest(MovedCase):
    """The database is restored from a backup made before what happened."""

    def restore(self):
        sessions.mark_restored(self.db)

    def again(self, host, *functions, expected=5):
        """Have a host report in a session after the restore."""
        node = base.node_uuid(host)
        hosts.begin(self.db, host, node, expected=expected)
        reports.report(self.db, base.scan(
            functions, host=host, number=1, assignments=(), node_uuid=node))

    def test_card_that_a_restored_host_got_since_is_cleaned(self):
        self.report('h2')
        self.restore()
        self.again('h2', base.function(1, dsn=OTHER))
        self.assertEqual('dirty', self.on('h2').state)
        self.clean_all()
        self.assertEqual('available', self.on('h2').state)

    def test_cards_of_a_host_that_the_backup_lacks_are_cleaned(self):
        self.again('h2', base.function(1, dsn=OTHER))
        self.assertEqual('dirty', self.on('h2').state)
        self.clean_all()
        self.assertEqual('available', self.on('h2').state)

    def test_card_of_a_host_that_is_off_since_is_cleaned_elsewhere(self):
        self.restore()
        # A new host, of which nobody has known anything.
        self.report('h3', base.function(0, dsn=DSN))
        self.assertEqual('dirty', self.on('h3').state)
        self.assertEqual((), cleaning.tasks(self.db, 'h3'))
        self.switch_off()
        moved_cards.decide(self.db, moved_cards.SILENT_AFTER)
        self.clean_all()
        self.assertEqual('available', self.on('h3').state)

    def test_device_whose_variant_is_younger_than_the_backup_is_cleaned(self):
        self.report('h2')
        self.restore()
        card = base.function(1, dsn=OTHER, device='2331')
        self.again('h2', card)
        self.assertEqual('unmanaged', self.on('h2').shown_state)
        self.assertEqual((), cleaning.tasks(self.db, 'h2'))
        variant_admin.create(self.db, admin.VariantInfo(
            name='H200', vendor='10de', device='2331'))
        self.assertEqual('dirty', self.on('h2').state)
        self.clean_all()
        self.assertEqual('available', self.on('h2').state)
