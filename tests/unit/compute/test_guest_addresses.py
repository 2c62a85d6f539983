# SPDX-License-Identifier: Apache-2.0
"""Tests of the addresses in guests that hosts send."""

import threading

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import releases
from gpgpu_plugin.conductor import vendordata
from tests.fixtures import patience
from tests.unit.compute import base


class GuestAddressesTest(base.ComputeTestCase):

    def setUp(self):
        super().setUp()
        self.uuids = self.boot(2)
        self.calls = 0
        activate = self.api.activate

        def counted(*args, **kwargs):
            self.calls += 1
            return activate(*args, **kwargs)
        self.api.activate = counted

    def found(self, *places):
        return {uuid: (f'0000:{place:02x}:00.0',) if place else ()
                for uuid, place in zip(self.uuids, places, strict=True)}

    def shown(self):
        """Return the buses in the guest that vendordata has."""
        [gpus] = vendordata.gpus(self.conductor.db, 'i1', 'p1')
        return [int(address[5:7], 16)
                for [address] in gpus.get('addresses', ())]

    def test_only_what_changed_is_sent(self):
        self.assertEqual([], self.shown())
        for places, calls in (((4, 5), 1), ((4, 5), 1), ((4, 6), 2)):
            self.tracker.place(self.found(*places))
            self.assertEqual((list(places), calls),
                             (self.shown(), self.calls))
        self.tracker.run_once()
        self.assertEqual(2, self.calls)

    def test_thread_does_not_send_what_another_is_sending(self):
        """That of nova-compute's start, beside the worker's."""
        sending, waited = threading.Event(), []
        send = self.api.activate

        def slow(*args, **kwargs):
            sending.set()
            other.join(0.2)
            waited.append(other.is_alive())
            return send(*args, **kwargs)

        def place():
            sending.wait(patience.LONG)
            self.tracker.place(self.found(4, 5))
        other = threading.Thread(target=place)
        other.start()
        self.api.activate = slow
        self.tracker.place(self.found(4, 5))
        other.join()
        self.assertEqual(([True], 1), (waited, self.calls))

    def test_unknown_place_is_shown_of_no_gpu(self):
        self.tracker.place(self.found(4, 5))
        self.tracker.place(self.found(4, 0))
        self.assertEqual([], self.shown())

    def test_what_no_conductor_accepts_is_sent_by_the_next_iteration(self):
        self.tracker.place(self.found(4, 5))
        for error in (exception.ConductorUnavailable(
                    method='activate', timeout=1),
                      RuntimeError('broken')):
            counted = self.api.activate

            def away(*args, error=error, **kwargs):
                raise error
            self.api.activate = away
            self.tracker.place(self.found(6, 7))
            self.api.activate = counted
            self.assertEqual([4, 5], self.shown())
            self.tracker.run_once()
            self.assertEqual([6, 7], self.shown())
            self.tracker.place(self.found(4, 5))

    def test_new_session_is_sent_all_once(self):
        self.tracker.place(self.found(4, 5))
        self.tracker.session.lose()
        for _ in range(2):
            self.tracker.run_once()
            self.assertEqual(2, self.calls)

    def test_ended_assignment_makes_the_host_compare(self):
        releases.release(self.conductor.db, self.uuids[:1])
        self.tracker.place(self.found(4, 5))
        self.tracker.run_once()
        self.assertEqual(
            self.uuids[1:], [assignment.uuid for assignment in
                             self.tracker.assignments.of_instance('i1')])

    def test_claim_is_not_activated_by_its_addresses(self):
        claim = self.tracker.session.call(
            self.api.claim, self.request(1, 'i2'))
        self.tracker.assignments.add('i2', claim.assignments)
        self.tracker.place({claim.assignments[0].uuid: ('0000:04:00.0',)})
        self.assertEqual(0, self.calls)
