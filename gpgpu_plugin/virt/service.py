# SPDX-License-Identifier: Apache-2.0
"""GPUs in the life of nova-compute: start, provider tree, end."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import time
import typing
from collections.abc import Sequence

import nova.conf
from nova import exception as nova_exception
from nova import objects
from nova.compute import power_state
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin import extensions
from gpgpu_plugin.compute import assignments
from gpgpu_plugin.compute import book_lock
from gpgpu_plugin.compute import examination
from gpgpu_plugin.compute import liveness
from gpgpu_plugin.compute import manager as compute_manager
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import orphans
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.compute import tasks
from gpgpu_plugin.compute import unexpected
from gpgpu_plugin.compute import worker
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.doctor import host as host_drifts
from gpgpu_plugin.host import guest
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_api
from gpgpu_plugin.rpc import transport as rpc_transport
from gpgpu_plugin.virt import configured
from gpgpu_plugin.virt import denial_log
from gpgpu_plugin.virt import nova_driver
from gpgpu_plugin.virt import nova_managed_devices
from gpgpu_plugin.virt import nova_pci_records

LOG = logging.getLogger(__name__)
CONF = nova.conf.CONF

_INACTIVE = (power_state.SHUTDOWN, power_state.CRASHED)
"""Power states of a domain without a process."""


class OwnerRecords(typing.Protocol):
    """Records of GPUs of this host that others than the plugin assigned."""

    def owners(self, scan: scanner.Scan) -> dict[str, str]:
        """Return the owners of GPUs in a scan, by address.

        :raises Exception: the records cannot be read
        """

    def changed(self) -> bool:
        """Return whether an owner of the last ``owners`` lost its GPU."""


class ServiceMixin(nova_driver.ComputeDriver):
    """Mixin for the resource tracker, its worker thread and its RPC server.

    :cvar gpu_host: entry in the namespace ``gpgpu_plugin.hosts``
    """

    gpu_host: str

    def __init__(self, virtapi: nova_types.VirtAPI, *args: object,
                 **kwargs: object) -> None:
        with configured.or_end():
            configured.check_nova_version(importlib.metadata.version('nova'))
            conf_gpgpu.register_opts(CONF)
            conf_gpgpu.check(CONF)
        super().__init__(virtapi, *args, **kwargs)
        self._gpu_client = virtapi.reportclient
        # Kept open until the process ends: to close it would unlock the book.
        self._gpu_book_lock: typing.TextIO | None = None
        self._gpu_tracker: resource_tracker.ResourceTracker | None = None
        self._gpu_worker: worker.Worker | None = None
        self._gpu_transport: rpc_transport.Transport | None = None
        self._gpu_server: rpc_transport.RPCServer | None = None
        self._gpu_stopping = False
        # Whether the host has not been examined since it started.
        self._gpu_starts = False
        self._gpu_unexpected = unexpected.UnexpectedAssignments(
            time.monotonic)
        self._gpu_records: tuple[OwnerRecords, ...] = ()
        # Nova's options that cover GPUs, by PCI address.
        self._gpu_nova_options: tasks.ManagedElsewhere = lambda scan: {}

    @property
    def gpu_tracker(self) -> resource_tracker.ResourceTracker:
        """Return the host's resource tracker, which init_host creates."""
        if self._gpu_tracker is None:
            raise RuntimeError('init_host was not called')
        return self._gpu_tracker

    # -- start --------------------------------------------------------------

    def init_host(self, host: str) -> None:
        """Start the plugin's part, then Nova's, then the parts that need both.

        Nova may destroy guests before its first inventory, so the resource
        tracker is there first.

        :raises SystemExit: another process has the host's book, Nova
            itself assigns devices of a variant, or the host has no key
        """
        with configured.or_end():
            self._gpu_init_host(host)

    def _gpu_init_host(self, host: str) -> None:
        denial_log.install()
        self._gpu_book_lock = book_lock.acquire(
            assignments.path_of(CONF, host))
        tracker = self._gpu_make_tracker(host)
        self._gpu_tracker = tracker
        self._gpu_worker = worker.Worker(
            self._gpu_run_once, CONF.gpgpu.scan_interval, f'gpgpu-{host}')
        tracker.wake = self._gpu_worker.wake
        super().init_host(host)
        [(uuid, name)] = self.get_nodenames_by_uuid().items()
        tracker.set_node(name, uuid)
        # Before the first report: a GPU of other guests is not offered.
        self._gpu_records = self._gpu_owner_records(uuid)
        tracker.exclude(self._gpu_owners)
        # Claims of a dead predecessor end before anything is built.
        self._gpu_worker.run_once()
        if not tracker.session.is_fenced:
            # Nova starts guests next, as after a reboot of the host.
            tracker.restore()
        try:
            self._gpu_check_conflicts()
        except exception.ConfigInvalid:
            self._gpu_stop()
            raise
        self._gpu_starts = True
        self._gpu_worker.start()
        self._gpu_wake()

    def _gpu_make_tracker(
            self, host: str) -> resource_tracker.ResourceTracker:
        self._gpu_transport = rpc_transport.get_transport(CONF)
        host_class = extensions.load(extensions.HOSTS, self.gpu_host)
        tracker = resource_tracker.ResourceTracker(
            CONF, host,
            host_class.for_host(CONF, host, self._gpu_guests()),
            conductor_api.ConductorAPI(
                CONF, self._gpu_transport,
                caller=gpgpu_context.CallerKind.HOST, name=host),
            self._gpu_client, functools.partial(
                orphans.find, domain_of=self._gpu_domain))
        tracker.is_here = functools.partial(orphans.is_here, host=host)
        tracker.runs = lambda instance_uuid: (
            self._gpu_domain(instance_uuid).is_active)
        tracker.arrived_with = functools.partial(
            orphans.arrived_with, host=host, domain_of=self._gpu_domain)
        return tracker

    def _gpu_guests(self) -> guest.Guests | None:
        """Return what boots guests for cleanings; None: nothing can."""
        return None

    def _gpu_domains(self) -> tuple[host_drifts.Guest, ...] | None:
        """Return domains with devices; None: the hypervisor lists none."""
        return None

    def _gpu_domain(self, instance_uuid: str) -> liveness.Domain:
        """Return the state of an instance's domain; paused ones are active."""
        try:
            state = self.get_info(objects.Instance(uuid=instance_uuid)).state
        except nova_exception.InstanceNotFound:
            return liveness.Domain.ABSENT
        if state in _INACTIVE:
            return liveness.Domain.INACTIVE
        return dataclasses.replace(
            liveness.Domain.ACTIVE, devices=self._gpu_devices(instance_uuid))

    def _gpu_devices(self, instance_uuid: str) -> frozenset[str] | None:
        """Return the host devices of an instance's domain; None: unknown."""
        return None

    def _gpu_check_conflicts(self) -> None:
        """Refuse to start if Nova itself assigns devices of a variant."""
        nova_managed = nova_managed_devices.NovaManagedDevices(CONF)
        if not nova_managed:
            return
        tracker = self.gpu_tracker
        try:
            devices = tracker.api.device_list(
                gpgpu_context.admin(), host=tracker.host)
            scan = tracker.backend.scan()
        except (exception.ConductorUnavailable, exception.NotFound) as exc:
            # It starts all the same, and its groups offer nothing until the
            # conductor answers.
            LOG.warning('Cannot check whether Nova itself assigns GPUs of '
                        '%s: %s', tracker.host, exc)
        else:
            nova_managed.check(
                devices, scan, tracker.inventory.resource_classes())
        # A variant may come later that matches some of them.
        self._gpu_nova_options = nova_managed.options
        tracker.exclude(self._gpu_owners)

    def _gpu_owner_records(self, node_uuid: str) -> tuple[OwnerRecords, ...]:
        """Return the records to read; of two owners the later one counts."""
        return (nova_pci_records.NovaPCIRecords(node_uuid),)

    def _gpu_owners(self, scan: scanner.Scan) -> dict[str, str]:
        """Return who else manages GPUs of this host, by address."""
        owners: dict[str, str] = {}
        for records in self._gpu_records:
            owners |= records.owners(scan)
        return owners | {
            address: f'Nova ({option})'
            for address, option in self._gpu_nova_options(scan).items()}

    # -- the worker's thread ------------------------------------------------

    def _gpu_run_once(self) -> float | None:
        self._gpu_serve()
        pause = self.gpu_tracker.run_once()
        self._gpu_examine_once()
        return pause

    def _gpu_serve(self) -> None:
        """Serve the host's RPC topic as soon as there is a broker."""
        transport = self._gpu_transport
        if (transport is None or self._gpu_server is not None
                or self._gpu_stopping):
            return
        try:
            rpc_transport.probe(CONF, transport)
        except exception.BrokerUnavailable as exc:
            LOG.warning('%s; will be retried later', exc)
            return
        server = rpc_transport.server(
            transport, rpc_transport.compute_topic(CONF),
            self.gpu_tracker.host,
            [compute_manager.ComputeManager(
                self._gpu_refresh, self._gpu_assignments_changed,
                self._gpu_usage, self._gpu_examine, functools.partial(
                    self.gpu_tracker.api.answer, gpgpu_context.admin(),
                    self.gpu_tracker.host))])
        server.start()
        self._gpu_server = server

    def _gpu_refresh(self) -> None:
        self.gpu_tracker.refresh()
        self._gpu_wake()

    def _gpu_assignments_changed(self) -> None:
        self.gpu_tracker.assignments_changed()
        self._gpu_wake()

    def _gpu_usage(self, assignments: Sequence[claim_obj.Assignment],
                   ) -> tuple[claim_obj.Usage, ...]:
        """Judge assignments as this host's book has them, if it has them.

        Whoever can send a message could name another instance for them.
        """
        own = {assignment.uuid: assignment
               for assignment in self.gpu_tracker.assignments.all()}
        return orphans.usage(
            [own.get(assignment.uuid, assignment)
             for assignment in assignments],
            self._gpu_domain, self.gpu_tracker.builds.current())

    def _gpu_examine(self, repairs: Sequence[drift.Repair] = (),
                     ) -> tuple[drift.Drift, ...]:
        """Return the drifts of this host, after some repairs.

        That they are unknown is one as well.
        """
        host = self.gpu_tracker.host
        examiner = examination.Examiner(
            self.gpu_tracker, self._gpu_domain, self._gpu_domains)
        try:
            if repairs and self._gpu_worker is not None:
                examiner.repair(repairs, self._gpu_worker.run_once)
            return examiner.drifts()
        except Exception as exc:
            # Whatever it is, the operator must not take it for consistency.
            LOG.exception('Cannot compare what is known about %s', host)
            reason = str(exc).partition('\n')[0]
            return (drift.of('host_not_examined', host, host,
                             host=f'{type(exc).__name__}: {reason}'),)

    def _gpu_examine_once(self) -> None:
        """Log the drifts that are left when nova-compute has started."""
        tracker = self.gpu_tracker
        if not self._gpu_starts or not tracker.session.is_reported:
            return
        self._gpu_starts = False
        for found in self._gpu_examine():
            LOG.warning(
                'Drift %s on %s: %s: %s. %s. See "gpgpu-manage doctor --host '
                '%s"', found.name, tracker.host, found.subject,
                '; '.join(f'{name}: {text}'
                          for name, text in found.says.items()),
                found.reason, tracker.host)

    def _gpu_wake(self) -> None:
        if self._gpu_worker is not None:
            self._gpu_worker.wake()

    # -- Nova's calls -------------------------------------------------------

    def update_provider_tree(
            self, provider_tree: nova_types.ProviderTree, nodename: str,
            allocations: object = None) -> None:
        """Update Nova's resources, then the plugin's groups below the node."""
        super().update_provider_tree(provider_tree, nodename, allocations)
        tracker = self._gpu_tracker
        if tracker is None:
            return
        changed = [tracker.update_provider_tree(provider_tree, nodename),
                   self._gpu_records_changed(tracker),
                   self._gpu_is_unexpected(tracker)]
        if any(changed):
            self._gpu_wake()

    def _gpu_is_unexpected(
            self, tracker: resource_tracker.ResourceTracker) -> bool:
        """Make a comparison due if Nova expects other assignments here."""
        try:
            found = self._gpu_unexpected.find(
                tracker.assignments.all(), self.virtapi._compute.rt,
                tracker.builds.current())
        except Exception:
            # Whatever it is, the host must stay usable.
            LOG.exception('Cannot compare the assignments of %s with Nova\'s '
                          'resource tracker', tracker.host)
            return False
        if found:
            LOG.info('%s has assignments of instances %s, which Nova does not '
                     'expect there; comparing them with Nova', tracker.host,
                     ', '.join(found))
            tracker.request_reconcile()
        return bool(found)

    def _gpu_records_changed(
            self, tracker: resource_tracker.ResourceTracker) -> bool:
        """Request a report if a GPU is no longer used by another guest."""
        try:
            if not any(records.changed() for records in self._gpu_records):
                return False
        except Exception:
            # Whatever it is, the host must stay usable; Nova asks again.
            LOG.exception('Cannot read which GPUs of %s are used by guests '
                          'that the plugin did not create; these GPUs stay '
                          'unmanaged', tracker.host)
            return False
        tracker.exclude(self._gpu_owners)
        return True

    def cleanup_host(self, host: str) -> None:
        """Stop what init_host started."""
        self._gpu_stop()
        super().cleanup_host(host)

    def _gpu_stop(self) -> None:
        # Nova gives little time for this; an iteration may take long.
        self._gpu_stopping = True
        server, self._gpu_server = self._gpu_server, None
        if server is not None:
            server.stop()
            server.wait()
        if self._gpu_worker is not None:
            self._gpu_worker.stop()
            self._gpu_worker = None
