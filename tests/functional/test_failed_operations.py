# SPDX-License-Identifier: Apache-2.0
"""Operations that fail, or meet a conductor that does not answer."""

from __future__ import annotations

import typing

import fixtures
from nova import exception as nova_exception
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.fixtures import cloud
from tests.functional import test_operations

DOMAIN = test_operations.DOMAIN


class SameHostTest(test_operations.OperationCase):
    """Operations on a server that has two GPUs."""

    def test_rebuild_that_fails_before_the_driver_reserves_devices(
            self) -> None:
        # As that of a volume-backed server whose volume is not written.
        with fixtures.MockPatch(
                'nova.compute.manager.ComputeManager._rebuild_default_impl',
                side_effect=nova_exception.BuildAbortException(
                    instance_uuid=self.server['id'], reason='no volume')):
            self.act('rebuild', {'imageRef': cloud.IMAGE})
            self.wait_status(self.server['id'], 'ERROR')
        self.wait_facts(self.server, {
            **self.expected({'gpu1': self.gpus}, gpu1=0),
            'offered': {'gpu1 L40S': (4, 2), 'gpu2 L40S': (4, 0)}})
        self.delete(self.server)
        self.wait_facts(self.server, self.nothing_assigned)

    def test_rebuild_without_conductor_keeps_devices(self) -> None:
        self.conductor.stop()
        # REBUILD from before the answer on, so ACTIVE is the end of it.
        self.act('rebuild', {'imageRef': cloud.IMAGE})
        self.wait_status(self.server['id'], 'ACTIVE')
        self.conductor.start()
        self.wait_facts(self.server, self.gpus_assigned)

    def test_delete_without_conductor_is_sent_later(self) -> None:
        self.conductor.stop()
        self.delete(self.server)
        self.conductor.start()
        self.run_once('gpu1')
        self.wait_facts(self.server, self.nothing_assigned)


class BootTest(test_operations.OperationCase):
    """Boot of a server that fails on its first host."""

    def test_build_with_rejected_domain_goes_to_next_host(self) -> None:
        original = fakelibvirt.Domain.createWithFlags

        def rejects(domain: typing.Any, flags: int) -> int:
            if domain._connection.hostname == 'gpu1':
                raise fakelibvirt.libvirtError('device is in use')
            return original(domain, flags)
        self.delete(self.server)
        with fixtures.MonkeyPatch(f'{DOMAIN}.createWithFlags', rejects):
            self.server = self.boot(self.flavor(L40S=2))
        self.assertEqual('gpu2', self.server['OS-EXT-SRV-ATTR:host'])
        self.wait_facts(self.server, self.expected(
            {'gpu2': self.hostdevs(self.server, 'gpu2')}))
        self.assertIn('device is in use', self.stdlog.logger.output)

    def test_build_rejected_on_all_hosts_is_in_error(self) -> None:
        self.delete(self.server)
        with self.broken('createWithFlags'):
            self.server = self.boot(self.flavor(L40S=2), 'ERROR')
        self.wait_facts(self.server, self.nothing_assigned)

    def test_activation_without_answer_moves_build_to_next_host(self) -> None:
        self.delete(self.server)
        api = self.driver().gpu_tracker.api
        activate = api.activate

        def away(*args: typing.Any, **kwargs: typing.Any) -> typing.NoReturn:
            activate(*args, **kwargs)
            raise nova_exception.NovaException('the answer was lost')
        with fixtures.MockPatchObject(api, 'activate', away):
            self.server = self.boot(self.flavor(L40S=2))
        self.wait_facts(self.server, self.expected(
            {'gpu2': self.hostdevs(self.server, 'gpu2')}))
