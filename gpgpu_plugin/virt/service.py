# SPDX-License-Identifier: Apache-2.0
"""GPUs in the life of nova-compute: start, provider tree, end."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import sys
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator

import nova.conf
from nova import exception as nova_exception
from nova import objects
from nova.compute import power_state
from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin import extensions
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.compute import tracker_api
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.doctor import host as host_drifts
from gpgpu_plugin.host import base
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.objects import admin
from gpgpu_plugin.virt import denial
from gpgpu_plugin.virt import nova_devices
from gpgpu_plugin.virt import nova_driver

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF

_INACTIVE = (power_state.SHUTDOWN, power_state.CRASHED)
"""Power states of a domain without a process."""


class OtherOwners:
    """Owners by records of what is assigned, and by Nova's configuration.

    :param records: of two owners of a GPU the later one counts
    """

    def __init__(self, records: tuple[tracker_api.OwnerRecords, ...],
                 nova_managed: nova_devices.NovaManagedDevices,
                 ) -> None:
        self._records = records
        self._nova_managed = nova_managed
        self._is_checked = False
        self._is_reported = True

    def owners(self, scan: scanner.Scan) -> dict[str, str]:
        """Return who else manages GPUs of this host, by address."""
        owners: dict[str, str] = {}
        for records in self._records:
            owners |= records.owners(scan)
        if self._is_checked:
            self._is_reported = True
            owners |= {
                address: f'Nova ({option})' for address, option
                in self._nova_managed.options(scan).items()}
        return owners

    def changed(self) -> bool:
        """Return whether the owners differ from those of the last scan."""
        return not self._is_reported or any(
            records.changed() for records in self._records)

    def check(self, devices: Callable[[], Iterable[admin.DeviceInfo]],
              scan: Callable[[], scanner.Scan],
              resource_classes: Collection[str]) -> None:
        """Refuse to start if Nova itself assigns devices of a variant.

        A variant may come later that matches some of them. From then on Nova's
        options make it their owner.

        :raises ConfigInvalid: see NovaManagedDevices.check
        :raises Exception: what ``devices`` and ``scan`` raise
        """
        if not self._nova_managed:
            return
        try:
            self._nova_managed.check(devices(), scan(), resource_classes)
        finally:
            self._is_checked, self._is_reported = True, False


class ServiceMixin(nova_driver.ComputeDriver):
    """Mixin that makes the host's resource tracker, starts and stops it.

    :cvar gpu_host: entry in the namespace ``gpgpu_plugin.hosts``
    """

    gpu_host: str

    def __init__(self, virtapi: nova_types.VirtAPI, *args: object,
                 **kwargs: object) -> None:
        with or_end():
            check_nova_version(importlib.metadata.version('nova'))
            conf_gpgpu.register_opts(CONF)
            conf_gpgpu.check(CONF)
        super().__init__(virtapi, *args, **kwargs)
        self._gpu_client = virtapi.reportclient
        self._gpu_tracker: tracker_api.ResourceTrackerBase | None = None

    @property
    def gpu_tracker(self) -> tracker_api.ResourceTrackerBase:
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
        with or_end():
            self._gpu_init_host(host)

    def _gpu_init_host(self, host: str) -> None:
        denial.keep_out_of_nova_log()
        make_tracker: tracker_api.MakeTracker = extensions.load(
            extensions.RESOURCE_TRACKERS, CONF.gpgpu_compute.resource_tracker,
            '[gpgpu_compute] resource_tracker')
        tracker = make_tracker(CONF, host, tracker_api.VirtDriver(
            virtapi=self.virtapi, host_type=self.gpu_host,
            guests=self._gpu_guests, domain_of=self._gpu_domain,
            domains=self._gpu_domains))
        self._gpu_tracker = tracker
        super().init_host(host)
        [(uuid, name)] = self.get_nodenames_by_uuid().items()
        tracker.start(name, uuid, OtherOwners(
            self._gpu_owner_records(uuid),
            nova_devices.NovaManagedDevices(CONF)))

    def _gpu_guests(self) -> base.Guests | None:
        """Return what boots guests for cleanings; None: nothing can."""
        return None

    def _gpu_domains(self) -> tuple[host_drifts.GuestDevices, ...] | None:
        """Return domains with devices; None: the hypervisor lists none."""
        return None

    def _gpu_domain(self, instance_uuid: str) -> assignment_use.Domain:
        """Return the state of an instance's domain; paused ones are active."""
        try:
            state = self.get_info(objects.Instance(uuid=instance_uuid)).state
        except nova_exception.InstanceNotFound:
            return assignment_use.Domain.ABSENT
        if state in _INACTIVE:
            return assignment_use.Domain.INACTIVE
        return dataclasses.replace(
            assignment_use.Domain.ACTIVE,
            devices=self._gpu_devices(instance_uuid))

    def _gpu_devices(self, instance_uuid: str) -> frozenset[str] | None:
        """Return the host devices of an instance's domain; None: unknown."""
        return None

    def _gpu_owner_records(
            self, node_uuid: str) -> tuple[tracker_api.OwnerRecords, ...]:
        """Return the records to read; of two owners the later one counts."""
        return (nova_devices.NovaPCIRecords(node_uuid),)

    # -- Nova's calls -------------------------------------------------------

    def update_provider_tree(
            self, provider_tree: nova_types.ProviderTree, nodename: str,
            allocations: object = None) -> None:
        """Update Nova's resources, then the plugin's groups below the node."""
        super().update_provider_tree(provider_tree, nodename, allocations)
        if self._gpu_tracker is not None:
            self._gpu_tracker.update_provider_tree(provider_tree, nodename)

    def cleanup_host(self, host: str) -> None:
        """Stop what init_host started."""
        if self._gpu_tracker is not None:
            self._gpu_tracker.stop()
        super().cleanup_host(host)


# -- Check of the configuration that nova-compute starts with.


SUPPORTED_NOVA = {33: '2026.1', 34: '2026.2'}
"""Releases of OpenStack, by the major version of their Nova."""


def check_nova_version(found: str) -> None:
    """Refuse a version of Nova that the plugin does not support.

    :raises ConfigInvalid: the message names both versions
    """
    if found.partition('.')[0] not in map(str, SUPPORTED_NOVA):
        supported = ' and '.join(
            f'{major} ({name})' for major, name in SUPPORTED_NOVA.items())
        raise exception.ConfigInvalid(
            option='compute_driver',
            reason=f'this version of gpgpu_plugin works with Nova '
                   f'{supported}, and this is Nova {found}')


@contextlib.contextmanager
def or_end() -> Iterator[None]:
    """End nova-compute with one line if its configuration is wrong.

    Nova would log the same with a traceback, or take a wrong value for a
    driver of another type. It ends in this way itself if there is no driver.

    :raises SystemExit: the configuration is wrong
    """
    try:
        yield
        return
    except (exception.ConfigInvalid, cfg.Error) as exc:
        reason = str(exc)
    # Not where it is caught: oslo.log would add the error once more.
    LOG.critical('nova-compute cannot start: %s', reason)
    sys.exit(1)
