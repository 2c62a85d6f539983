# SPDX-License-Identifier: Apache-2.0
"""Contract between a virt driver and the resource tracker of its host.

A virt driver knows when Nova creates, moves and destroys a guest. The resource
tracker knows which devices the guest gets. ``ResourceTrackerBase`` is all that
the virt layer uses of a tracker, and ``VirtDriver`` all that a tracker may ask
the virt layer.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_use
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.doctor import host as host_drifts
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.host import base
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import inventory as inventory_obj

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VirtDriver:
    """Functions of a virt driver that the host's resource tracker may call.

    :ivar virtapi: Nova's, with the report client and its resource tracker
    :ivar host_type: name of the host's entry point in ``gpgpu_plugin.hosts``
    :ivar guests: returns what boots guests for cleanings; None: nothing can
    :ivar domain_of: returns the state of an instance's domain on the host
    :ivar domains: returns the domains with devices; None: the hypervisor
        lists none
    """

    virtapi: nova_types.VirtAPI
    host_type: str
    guests: Callable[[], base.Guests | None]
    domain_of: Callable[[str], assignment_use.Domain]
    domains: Callable[[], tuple[host_drifts.GuestDevices, ...] | None]


class OwnerRecords(typing.Protocol):
    """Records of GPUs of this host that others than the plugin assigned."""

    def owners(self, scan: scanner.Scan) -> dict[str, str]:
        """Return the owners of GPUs in a scan, by address.

        :raises Exception: the records cannot be read
        """

    def changed(self) -> bool:
        """Return whether the owners differ from those of the last scan.

        :raises Exception: the records cannot be read
        """


class Owners(OwnerRecords, typing.Protocol):
    """All owners of GPUs of this host that others than the plugin assign."""

    def check(self, devices: Callable[[], Iterable[admin.DeviceInfo]],
              scan: Callable[[], scanner.Scan],
              resource_classes: Collection[str]) -> None:
        """Refuse to start if another owner would assign a tracker's devices.

        :param devices: returns the devices that the tracker knows here
        :param scan: scans the host
        :param resource_classes: classes that the tracker offers here
        :raises ConfigInvalid: Nova is configured to assign one of them
        :raises Exception: what ``devices`` and ``scan`` raise
        """


class ResourceTrackerBase(abc.ABC):
    """Resource tracker of one host: who has which of its devices.

    The option ``[gpgpu_compute] resource_tracker`` names an entry point in the
    namespace ``gpgpu_plugin.resource_trackers``, which is called with the
    arguments of ``__init__``.

    Nova's threads call the methods at the same time, for different instances.

    :ivar host: name of the nova-compute service
    """

    def __init__(self, conf: cfg.ConfigOpts, host: str,
                 driver: VirtDriver) -> None:
        self.conf = conf
        self.host = host
        self.driver = driver

    # -- the life of nova-compute -------------------------------------------

    @abc.abstractmethod
    def start(self, node: str, node_uuid: str, owners: Owners) -> None:
        """Begin to work; Nova starts guests next, as after a reboot.

        :param node: name of the compute node
        :param node_uuid: UUID of its resource provider
        :raises ConfigInvalid: ``owners.check`` refuses; nothing runs
        """

    @abc.abstractmethod
    def stop(self) -> None:
        """End threads and servers; may be called again."""

    @abc.abstractmethod
    def update_provider_tree(self, tree: nova_types.ProviderTree,
                             node: str) -> None:
        """Put what the host offers into Nova's tree; never raises.

        Nova calls it in each of its periodic updates, and holds a lock.
        """

    @property
    @abc.abstractmethod
    def offered(self) -> inventory_obj.HostInventory | None:
        """Return the groups of the host; None: they are not known yet."""

    # -- assignments --------------------------------------------------------

    @abc.abstractmethod
    def assigned(self, instance_uuid: str | None = None,
                 ) -> tuple[claim_obj.Assignment, ...]:
        """Return the assignments of an instance here, in all its roles.

        Neither raises nor waits.

        :param instance_uuid: None: of all instances
        """

    @abc.abstractmethod
    def building(self, instance_uuid: str,
                 ) -> contextlib.AbstractContextManager[None]:
        """Keep an instance's assignments while its guest changes.

        The other methods for an instance are called within this context, but
        for the claim of a move's destination and its end.
        """

    @abc.abstractmethod
    def request_reconcile(self,
                          allocation_removal: str | None = None) -> None:
        """Make a comparison with Nova due, which ends what nobody uses.

        :param allocation_removal: the consumer whose allocation Nova removes
            next, without a retry
        """

    # -- the devices of one guest -------------------------------------------

    @abc.abstractmethod
    def claim(self, request: claim_obj.ClaimRequest) -> claim_obj.Claim:
        """Claim devices of this host for a guest that does not exist yet.

        What an earlier stay of the instance left here ends with the claim.

        :raises ClaimDenied: the devices are not there
        :raises GPUPluginException: nothing is claimed
        """

    @abc.abstractmethod
    def prepare(self, assignments: Iterable[claim_obj.Assignment]) -> None:
        """Prepare devices for a guest; skip those that are ready.

        :raises HostError: a device cannot be prepared
        """

    @abc.abstractmethod
    def attachment(self, assignment: claim_obj.Assignment) -> base.Attachment:
        """Return what a guest gets for an assignment.

        :raises HostError: the device is missing
        """

    @abc.abstractmethod
    def place(self, found: claim_obj.GuestAddresses) -> None:
        """Note where a guest that starts has its devices; never raises."""

    @abc.abstractmethod
    def activate(self, instance_uuid: str,
                 claimed: Sequence[claim_obj.Assignment]) -> None:
        """Record that a guest has what was claimed for it.

        :raises NotFound: part of the claim has ended
        """

    @abc.abstractmethod
    def release_instance(
            self, instance_uuid: str,
            which: Callable[[claim_obj.Assignment], bool] | None = None, *,
            host: str | None = None,
            allocation_removal: str | None = None) -> None:
        """End assignments of an instance, later if nobody answers.

        A device that a guest may have changed is cleaned before its next
        assignment. One that was claimed and not prepared is free at once.

        :param which: selects some of the assignments; default all
        :param host: another host, which is the destination of a migration
            from here that failed
        :param allocation_removal: see request_reconcile
        :raises HostError: the release can be neither sent nor stored
        :raises Exception: of another host, which ends them later
        """

    @abc.abstractmethod
    def confirm_migration(
            self, confirmation: claim_obj.MigrationConfirmation) -> None:
        """End what an instance had here before a migration.

        What the migration claimed is the instance's from then on.

        :raises HostError: the confirmation can be neither sent nor stored
        """


MakeTracker = Callable[
    [cfg.ConfigOpts, str, VirtDriver], ResourceTrackerBase]
"""Makes the tracker of a host; an entry point is such a function or class."""


def restore(tracker: ResourceTrackerBase,
            assigned: Iterable[claim_obj.Assignment]) -> None:
    """Prepare assigned devices again, as after a reboot of the host.

    Devices that are ready stay as they are. Never raises.
    """
    for assignment in assigned:
        try:
            tracker.prepare([assignment])
        except exception.HostError:
            # Its guest does not start, and says why; the others do.
            LOG.exception(
                'Cannot prepare device %s on %s for instance %s',
                assignment.address, tracker.host, assignment.instance_uuid)


def activate_late(tracker: ResourceTrackerBase, instance_uuid: str,
                  assigned: Iterable[claim_obj.Assignment]) -> None:
    """Activate those of a guest's assignments that are not; never raises.

    nova-compute was killed before it did so, or no conductor answered. Until
    then they count as those of a build that may have failed.
    """
    late = [assignment for assignment in assigned
            if assignment.state == device_rules.DeviceState.PROVISIONING]
    if not late:
        return
    try:
        tracker.activate(instance_uuid, late)
    except Exception:
        LOG.exception('Cannot activate the assignments of instance %s on %s; '
                      'the next comparison does so if its guest runs',
                      instance_uuid, tracker.host)
        tracker.request_reconcile()
