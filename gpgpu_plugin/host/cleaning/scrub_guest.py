# SPDX-License-Identifier: Apache-2.0
"""Step ``scrub-guest``: a guest writes and verifies all memory of the GPU.

The guest is the operator's, and is trusted, as is what it reports. The card is
not trusted: no driver of the host is bound to it, its option ROM does not run
in the guest, and the IOMMU confines it to the memory of the guest, which it
can change by DMA. tools/scrub-guest has what runs in the guest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
import time
import typing

from gpgpu_plugin import exception
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.host import base
from gpgpu_plugin.host.cleaning import steps

_MIB = 1024 ** 2
_OUTPUT = 2000
_MAX_LENGTH = 200


class ScrubGuestStep(steps.CleaningStep):
    """Step that passes if a guest has verified all memory of the GPU.

    :cvar closing: seconds within which nobody has the GPU open after the guest
        has ended
    """

    name = cleaning.SCRUB_GUEST
    # Of its begin; it takes longer to run.
    limit = 60.0
    closing: typing.ClassVar[float] = 60.0

    def limit_for(self, target: steps.Target) -> float:
        """Return the guest's time, and some to start and end it."""
        return (target.access.scrub_guest.seconds + 2 * self.limit
                + self.closing)

    def run(self, target: steps.Target) -> cleaning.StepResult:
        if target.device.memory_mib is None:
            return self.inapplicable(steps.UNKNOWN_MEMORY)
        total = target.device.memory_mib * _MIB
        image = _Image.of(target.access.scrub_guest)
        facts: steps.Facts = dict(image.hashes)
        nonce = secrets.token_hex(16)
        target.check()
        ended = image.guests.run(
            _guest(target, image, nonce), target.access.scrub_guest.seconds,
            lambda text: Report.find(text, nonce) is not None)
        self._await_closed(target)
        report = Report.find(ended.output, nonce)
        if report is None:
            return self._without_report(target, ended, facts)
        facts |= {'bytes_of_memory': max(total, report.memory_bytes),
                  'bytes_verified': report.verified_bytes,
                  'bytes_seen_by_guest': report.memory_bytes,
                  'guest_seconds': report.seconds,
                  'program': report.program, 'detail': report.detail}
        return self._judged(target, report, total, facts)

    def _await_closed(self, target: steps.Target) -> None:
        """Wait until nobody has the card open.

        :raises HostError: somebody still has
        """
        deadline = time.monotonic() + self.closing
        while any(function.used_by is device_rules.DeviceUser.VFIO
                  for function in target.read()):
            if time.monotonic() > deadline:
                raise exception.HostError(
                    path=target.address, reason='a process still has it open '
                    'after its scrub guest has ended')
            time.sleep(0.2)

    def _without_report(self, target: steps.Target, ended: base.EndedGuest,
                        facts: steps.Facts) -> cleaning.StepResult:
        output = ended.output.strip()[-_OUTPUT:]
        seconds = target.access.scrub_guest.seconds
        why = ('the scrub guest ended without a report that has its nonce'
               if ended.in_time else
               f'the scrub guest took longer than {seconds:g} s, and was '
               f'ended')
        return self.failed(f'{why}; its output ends with: '
                           f'{output[-_MAX_LENGTH:]}', output=output, **facts)

    def _judged(self, target: steps.Target, report: Report, total: int,
                facts: steps.Facts) -> cleaning.StepResult:
        gpu = target.functions[0]
        memory, verified = report.memory_bytes, report.verified_bytes
        if (report.vendor, report.device) != (gpu.vendor, gpu.device):
            return self.failed(
                f'the scrub guest had {report.vendor}:{report.device}, and '
                f'not {gpu.vendor}:{gpu.device}', **facts)
        if verified < memory:
            return self.failed(
                f'{memory - verified} of {memory} bytes did not keep what '
                f'the scrub guest had written', **facts)
        if memory < total:
            return self.inapplicable(
                f'the scrub guest sees {memory} of {total} bytes of its '
                f'memory ({report.detail})', **facts)
        return self.passed(
            f'a guest has written and verified {verified} of {memory} bytes '
            f'of its memory', **facts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Report of a scrub guest, which is one line of JSON.

    :ivar nonce: that of its kernel's command line
    :ivar vendor: PCI id of the GPU that it had
    :ivar device: PCI id
    :ivar memory_bytes: memory of the GPU, as far as the guest sees it
    :ivar verified_bytes: how many of these were written and read back right
    :ivar seconds: duration
    :ivar program: path of what wrote it, in the guest
    :ivar detail: how it was done
    """

    nonce: str
    vendor: str
    device: str
    memory_bytes: int
    verified_bytes: int
    seconds: int
    program: str
    detail: str

    @classmethod
    def find(cls, output: str, nonce: str) -> Report | None:
        """Return the first report of a guest with its nonce.

        :param output: of its console, with messages of its kernel
        """
        for line in output.splitlines():
            try:
                report = cls(**json.loads(line))
            except (ValueError, TypeError):
                continue
            if report.nonce == nonce and report._is_sound():
                return report
        return None

    def _is_sound(self) -> bool:
        """Return whether the types and numbers can be right."""
        texts = (self.vendor, self.device, self.program, self.detail)
        numbers = (self.seconds, self.verified_bytes, self.memory_bytes)
        return (all(isinstance(text, str) and len(text) <= _MAX_LENGTH
                    for text in texts)
                # Not bool, which is an int.
                and all(type(number) is int and number >= 0
                        for number in numbers)
                and self.verified_bytes <= self.memory_bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Image:
    """Image of the scrub guest, with what boots it.

    :ivar hashes: of its files, by the name of the fact
    """

    kernel: str
    initrd: str
    hashes: dict[str, str]
    guests: base.Guests

    @classmethod
    def of(cls, settings: base.ScrubGuest) -> _Image:
        """Return the configured image.

        :raises HostNotReady: none is configured, it cannot be read, or this
            host cannot boot it
        """
        if settings.path is None:
            raise exception.HostNotReady(
                path='[gpgpu_compute] scrub_guest_path',
                reason='the cleaning policy of the variant names the step '
                       'scrub-guest, but no image is configured for '
                       'nova-compute on this host; build one with '
                       'tools/scrub-guest/build and configure it, or change '
                       'the policy')
        if settings.guests is None:
            raise exception.HostNotReady(
                path='[DEFAULT] compute_driver',
                reason='the cleaning policy of the variant names the step '
                       'scrub-guest, which needs gpgpu.GpuLibvirtDriver; '
                       'change the policy')
        kernel = os.path.join(settings.path, 'vmlinuz')
        initrd = os.path.join(settings.path, 'initrd.img')
        return cls(kernel=kernel, initrd=initrd, guests=settings.guests,
                   hashes={'kernel_sha256': _hash(kernel),
                           'initrd_sha256': _hash(initrd)})


def _hash(path: str) -> str:
    try:
        with open(path, 'rb') as file:
            return hashlib.file_digest(file, 'sha256').hexdigest()
    except OSError as exc:
        raise exception.HostNotReady(
            path=path, reason=f'[gpgpu_compute] scrub_guest_path needs it, '
                              f'and it cannot be read: {exc.strerror}',
        ) from None


def _guest(target: steps.Target, image: _Image, nonce: str) -> base.Guest:
    gpu = target.functions[0]
    return base.Guest(
        functions=tuple(function.address for function in target.functions),
        kernel=image.kernel, initrd=image.initrd,
        memory_mib=target.access.scrub_guest.memory_mib,
        # The kernel passes these to init as environment.
        command_line=f'GPGPU_NONCE={nonce} '
                     f'GPGPU_IDS={gpu.vendor}:{gpu.device} '
                     f'GPGPU_MEMORY_MIB={target.device.memory_mib}')
