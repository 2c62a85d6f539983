# SPDX-License-Identifier: Apache-2.0
"""Contracts of the host layer.

A host is scanned as a whole; a backend is one way to assign its devices. A
virt driver that can boot guests for cleanings implements ``Guests``
(gpgpu_plugin.virt).
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import typing
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin.domain import cleaning as cleaning_rules
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import host
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.vfio import baseline
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.host.vfio import operations
from gpgpu_plugin.objects import claim

# -- Guests that get a card while it is being cleaned.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guest:
    """A guest without disk and network that gets all functions of a card.

    :ivar functions: addresses, that of the card's own function first; they
        are bound to their VFIO drivers
    :ivar kernel: path of its kernel
    :ivar initrd: path of its initramfs
    :ivar command_line: what the kernel is given, beside the console
    :ivar memory_mib: MiB of its main memory
    """

    functions: tuple[str, ...]
    kernel: str
    initrd: str
    command_line: str
    memory_mib: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndedGuest:
    """A guest that has ended.

    :ivar output: the end of what it wrote to its console
    :ivar in_time: whether it ended within its time
    """

    output: str
    in_time: bool


class Guests(typing.Protocol):
    """Way to boot guests on this host."""

    def run(self, guest: Guest, seconds: float,
            until: Callable[[str], bool]) -> EndedGuest:
        """Boot a guest, and wait until it has ended.

        The kernel stops each access of the card to memory that is not the
        guest's (IOMMU), and the card's option ROMs do not run in it. When the
        call returns, no process of the guest exists.

        :param seconds: time after which it is ended
        :param until: whether its output is complete, so that it can be ended
        :raises HostNotReady: it cannot be started
        :raises HostError: it cannot be ended, and may still have the card
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScrubGuest:
    """Configuration of the guest that the step ``scrub-guest`` boots.

    :ivar path: folder with ``vmlinuz`` and ``initrd.img``; None: not
        configured
    :ivar memory_mib: MiB of its main memory
    :ivar seconds: time after which it is ended
    :ivar guests: boots it; None: the virt driver cannot do so
    """

    path: str | None = None
    memory_mib: int = 512
    seconds: float = 1800.0
    guests: Guests | None = None


# -- Hosts, their devices and backends.


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostDevice:
    """A device, and the assignment for which a host works on it.

    :ivar assignment_uuid: the assignment; for a cleaning, the last one
    :ivar address: address of the function, or of the GPU on which an mdev is
        created
    :ivar vgpu_type: name of the vGPU type; naming.PASSTHROUGH: the whole GPU
    :ivar placement_id: placement that the vGPU must have (NVIDIA's mixed-size
        mode); None: any
    :ivar had_guest: whether a guest had it, so that it has a baseline
    :ivar replaces: whether the baseline of its place is of another device,
        that it replaced
    :ivar restored: the assignment had it before, so that its guest may have
        changed it
    :ivar cleaning: the request to clean it, whatever the number of attempts;
        None: the device is not being cleaned
    :ivar steps: those that its cleaning must pass, in their order
    :ivar memory_mib: MiB of memory of the whole GPU; None: unknown
    """

    assignment_uuid: str
    stable_id: str
    address: str
    vgpu_type: str = naming.PASSTHROUGH
    placement_id: int | None = None
    had_guest: bool = True
    replaces: bool = False
    restored: bool = False
    cleaning: str | None = None
    steps: tuple[str, ...] = cleaning_rules.POLICIES[cleaning_rules.RESET_ONLY]
    memory_mib: int | None = None

    @classmethod
    def of(cls, assignment: claim.Assignment) -> HostDevice:
        """Return the device of an assignment."""
        return cls(assignment_uuid=assignment.uuid,
                   stable_id=assignment.stable_id,
                   address=assignment.address,
                   vgpu_type=assignment.vgpu_type,
                   placement_id=assignment.placement_id,
                   restored=assignment.state
                   == device_rules.DeviceState.ASSIGNED)

    @classmethod
    def to_clean(cls, task: claim.CleanTask) -> HostDevice:
        """Return the device of a cleaning."""
        return cls(assignment_uuid=task.assignment_uuid or '',
                   stable_id=task.stable_id, address=task.address,
                   vgpu_type=task.vgpu_type or naming.PASSTHROUGH,
                   had_guest=task.had_guest, replaces=task.replaces,
                   cleaning=task.request, steps=task.steps,
                   memory_mib=task.memory_mib)

    @property
    def is_passthrough(self) -> bool:
        """Return whether the guest gets the whole GPU."""
        return self.vgpu_type == naming.PASSTHROUGH


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleanVerdict:
    """Verdict on whether a device may be assigned to another tenant.

    The conductor judges the same results again, by the policy of that time.

    :ivar results: of the steps that were taken, in their order
    :ivar steps: those that must have passed
    """

    results: tuple[cleaning_rules.StepResult, ...]
    steps: tuple[str, ...]

    @classmethod
    def failed(cls, device: HostDevice, reason: str) -> CleanVerdict:
        """Return the verdict on a device of which no step could be taken."""
        return cls(steps=device.steps, results=(cleaning_rules.StepResult(
            step=device.steps[0], outcome=cleaning_rules.StepOutcome.FAILED,
            reason=reason),))

    @property
    def failure(self) -> str | None:
        """Return why the device is not clean; None: it is."""
        return cleaning_rules.failure(self.results, self.steps)

    @property
    def passed(self) -> bool:
        """Return whether the device is clean."""
        return self.failure is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attachment:
    """The PCI functions or the mdev that a guest gets for one device.

    :ivar functions: addresses, the device's own first
    :ivar mdev: UUID of the mdev
    """

    functions: tuple[str, ...] = ()
    mdev: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Access:
    """The parts by which backends read and change a host.

    :ivar is_designated: whether a function stays bound to its VFIO driver
        between guests
    :ivar baselines: configuration of devices before their guests
    :ivar vfio: what VFIO itself does with functions
    :ivar cleaning_program: path of the program that the step ``program`` runs;
        None: there is none
    :ivar knobs_command: command that the step ``knobs`` runs; None: there is
        none
    :ivar scrub_guest: the guest of the step ``scrub-guest``
    """

    sysfs: sysfs_mod.Sysfs
    binder: binding.Binder
    is_designated: Callable[[pci.PCIFunction], bool]
    baselines: baseline.Baselines
    vfio: operations.VFIO
    cleaning_program: str | None = None
    knobs_command: str | None = None
    scrub_guest: ScrubGuest = dataclasses.field(
        default_factory=ScrubGuest)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
    """A scan beside those that are reported.

    :ivar designated: addresses of functions that are kept for guests at boot
    """

    scan: scanner.Scan
    designated: frozenset[str]


@contextlib.contextmanager
def changing() -> Iterator[None]:
    """Translate the errors of a preparation that has begun.

    :raises HalfPrepared: the host is not ready to go on
    """
    try:
        yield
    except exception.HostNotReady as exc:
        raise exception.HalfPrepared(
            path=exc.kwargs['path'], reason=exc.kwargs['reason']) from exc


class Devices(abc.ABC):
    """The operations on one device.

    Every method is idempotent: it compares before it acts, so that it may be
    called again after a failure or a crash.
    """

    @abc.abstractmethod
    def prepare(self, device: HostDevice) -> None:
        """Make the device ready for a guest.

        :raises HostError: the hardware did not do what it was asked
        :raises NoDriverCapacity: the GPU's driver creates no more vGPUs of
            the type; the device was not changed
        :raises HalfPrepared: the host was not ready any more; the device was
            changed, and is not defective
        :raises HostNotReady: the device was not changed
        """

    @abc.abstractmethod
    def release(self, device: HostDevice) -> None:
        """Undo prepare, but only for the device's own assignment.

        :raises HostError: the hardware did not do what it was asked
        """

    @abc.abstractmethod
    def clean(self, device: HostDevice) -> CleanVerdict:
        """Make the device fit for another tenant.

        The verdict is negative if this is not certain. The device stays
        isolated until ``give_back``.

        :raises HostNotReady: the host is not set up to clean it; the device is
            not defective
        """

    @abc.abstractmethod
    def give_back(self, device: HostDevice) -> None:
        """Let the host's driver have the device again, which is clean.

        :raises HostError: the hardware did not do what it was asked
        """

    @abc.abstractmethod
    def attachment(self, device: HostDevice) -> Attachment:
        """Return what a guest gets for the device.

        :raises HostError: the device is missing
        """


class Backend(Devices):
    """One way to assign devices. Namespace ``gpgpu_plugin.backends``.

    Of the backends that handle a device, the one with the lowest ``order``
    assigns it; of those with the same order, the one whose entry point's name
    is the first in the alphabet.
    """

    def __init__(self, access: Access) -> None:
        self.access = access

    @property
    @abc.abstractmethod
    def order(self) -> int:
        """Return the order; those of the plugin are 100 to 400."""

    def give_back(self, device: HostDevice) -> None:
        """Do nothing: the host's driver has the device all the time."""

    @abc.abstractmethod
    def handles(self, device: HostDevice) -> bool:
        """Return whether this backend supports the device as it is now."""


class ComputeHost(Devices):
    """A host with its devices. Namespace ``gpgpu_plugin.hosts``."""

    @classmethod
    @abc.abstractmethod
    def for_host(cls, conf: cfg.ConfigOpts, host: str,
                 guests: Guests | None = None) -> ComputeHost:
        """Return the host on which a nova-compute runs.

        :param guests: boots guests that get devices of the host; None: the
            virt driver cannot do so
        :raises GPUPluginException: the configuration is wrong
        """

    @abc.abstractmethod
    def make_vfs(self, busy: Collection[str],
                 refused: Callable[[Sequence[str]], Collection[str]]
                 = lambda gpus: ()) -> None:
        """Create the configured number of VFs on GPUs that have none.

        Errors of the host are logged, and the other GPUs get their VFs.

        :param busy: stable ids of GPUs that are not touched
        :param refused: given the stable ids of those that would get VFs,
            returns those that must not; not called if there are none
        :raises Exception: what ``refused`` raises; no GPU was touched
        """

    @abc.abstractmethod
    def lacks_vfs(self) -> bool:
        """Return whether ``make_vfs`` left out a GPU that lacks VFs.

        It was busy or refused. One on which the making failed is not meant.
        """

    @abc.abstractmethod
    def driver_capacity(self, devices: Iterable[HostDevice],
                  ) -> dict[str, vgpu.DriverCapacity]:
        """Return driver reports after vGPUs were created or removed.

        Never raises.

        :param devices: vGPUs whose GPUs' drivers are read
        :returns: by stable id of the GPU, without passthrough devices and
            GPUs whose driver reports no capacity
        """

    @abc.abstractmethod
    def scan(self) -> scanner.Scan:
        """Scan the host.

        :raises HostError: the host cannot be scanned
        """

    @abc.abstractmethod
    def inspect(self) -> Inspection:
        """Scan the host beside its reports; ``changed`` stays as it is.

        :raises HostError: the host cannot be scanned
        """

    @abc.abstractmethod
    def discover(self, scan: scanner.Scan) -> tuple[pci.PCIFunction, ...]:
        """Return the functions to report: GPUs and parents of vGPUs."""

    @abc.abstractmethod
    def identity(self, scan: scanner.Scan) -> host.MachineIdentity:
        """Return what tells this machine from others. Never raises."""

    @abc.abstractmethod
    def changed(self) -> bool:
        """Return whether the host differs from its last scan; cheap."""
