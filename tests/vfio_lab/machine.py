# SPDX-License-Identifier: Apache-2.0
"""A program that boots Linux in QEMU with an IOMMU and display devices.

    python -m tests.vfio_lab.machine COMMAND... [--then COMMAND...]

boots Debian's kernel under emulation (no KVM needed), with this machine's own
root read-only below a disk of the guest's, runs the command there as root and
ends with its exit code. Each --then is another boot with the same disk, if the
one before it succeeded. Two NUMA nodes with a PCIe host bridge each; below
them root ports that are slots 11, 12 (node 0), 14, 15 (node 1) with a bochs
display each, slot 13 with an NVMe of four VFs, and slot 16 (node 1) with a
card of two functions that cannot be reset one by one: a bochs display and a
sound controller. /out/scrub-guest has an image of the scrub guest with the
same kernel. With GPGPU_LAB_MDEVS=1 the kernel's sample drivers of mdevs
(MDEVS) are built for it and can be loaded there. With GPGPU_LAB_NESTED=1 KVM
works there, for guests of the guest.

Needs (Debian): qemu-system-x86 seabios busybox-static cpio e2fsprogs gcc kmod
libc6-dev libelf1 make udev xz-utils zstd.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable

from tests.fixtures import smbios

HERE = pathlib.Path(__file__).parent
MODULES = ('virtio_pci', 'virtio_blk', 'ext4', '9pnet_virtio', '9p',
           'overlay')
META = 'linux-image-amd64'
# Debian builds none of samples/vfio-mdev.
MDEVS = ('mbochs', 'mtty')
DISK = 16 * 1024 ** 3
# Of a display: the least that QEMU offers. VFIO writes and reads four bytes at
# a time, which takes most of a cleaning where a CPU is emulated.
MEMORY_MIB = 4
DISPLAY_ROM = pathlib.Path('/usr/share/seabios/vgabios-bochs-display.bin')
# Labels that firmware gives to functions at the addresses that SeaBIOS gives
# them: a bifurcated slot, and a device on the mainboard.
SLOT, IN_SLOT = 'LAB SLOT 1', ('0000:21:00.0', '0000:22:00.0')
ONBOARD, NVME = 'LAB DISK', '0000:23:00.0'
# Where the guest mounts something of its own (INIT, guest_init.bash).
HIDDEN = ('/dev', '/out', '/proc', '/run', '/sys')
SCRUB_GUEST = HERE.parents[1] / 'tools/scrub-guest/build'
CPU = 'Nehalem'
# KVM of the guest needs AMD's virtualization: QEMU emulates it, and not
# Intel's. Emulated twice, a kernel takes minutes to boot.
NESTED_CPU = (f'{CPU},vendor=AuthenticAMD,family=23,model=1,stepping=2,+svm,'
              f'+npt')
# In the kernel's command line, so that tests know where they are.
MARK = 'gpgpu_lab'
# Of one boot; a busy machine took three times as long as a quiet one.
TIMEOUT = 1800
# After so many seconds without output it is ended. No test takes a fifth of it
# on a quiet machine.
SILENCE = 900
# Once it has booted, the guest writes a beat every BEAT seconds
# (guest_init.bash). If it is silent for BEAT_TIMEOUT seconds, the machine is
# ended: a hung vCPU keeps a core of this machine busy, and does not end by
# itself.
BEAT_TIMEOUT = 180
BEAT = 5
# QEMU 7.2 itself may crash, and a guest whose own KVM runs may hang: of what
# ran in it, that says nothing.
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
RESTARTS = 2

INIT = """#!/bin/sh
export PATH=/bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
while read m; do insmod /mods/$m; done </mods/order
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro \
labroot /ro
mount -t ext4 -o noatime /dev/vda /rw
mkdir -p /rw/u /rw/w
mount -t overlay -o lowerdir=/ro,upperdir=/rw/u,workdir=/rw/w overlay /root
mkdir -p /root/proc /root/sys /root/dev
mount --move /dev /root/dev
mount --move /proc /root/proc
mount --move /sys /root/sys
exec switch_root /root {init}
"""
APPLETS = ('sh', 'mount', 'switch_root', 'insmod', 'mkdir')


def _run(*command: object, **kwargs: object) -> str:
    done = subprocess.run(  # type: ignore[call-overload]
        [str(part) for part in command], check=True, text=True,
        stdout=subprocess.PIPE, **kwargs)
    return str(done.stdout)


def _unpack(package: str, folder: pathlib.Path, *fields: str) -> str:
    """Download a package and unpack it into a folder without installing it.

    :param package: name of the package, or ``name=version``
    :returns: the fields of its control file
    """
    _run('apt-get', '-qq', '-o', 'APT::Sandbox::User=root', 'download',
         package, cwd=folder)
    [archive] = folder.glob('*.deb')
    _run('dpkg', '-x', archive, folder)
    said = _run('dpkg-deb', '-f', archive, *fields)
    archive.unlink()
    return said.strip()


def kernel(folder: pathlib.Path) -> tuple[pathlib.Path, str]:
    """Unpack Debian's kernel, and build what it lacks.

    :returns: its image, its version
    """
    package = next(
        word for word in _run('apt-cache', 'depends', META).split()
        if word.startswith('linux-image-') and word != META)
    release = _unpack(package, folder, 'Version')
    [image] = (folder / 'boot').glob('vmlinuz-*')
    version = image.name.removeprefix('vmlinuz-')
    if os.environ.get('GPGPU_LAB_MDEVS'):
        _add_mdevs(folder, version, release)
    _run('depmod', '-b', folder, version)
    return image, version


def _add_mdevs(folder: pathlib.Path, version: str, release: str) -> None:
    """Build MDEVS into an unpacked kernel; the arguments are as of _mdevs."""
    began = time.monotonic()
    extra = folder / 'lib/modules' / version / 'extra'
    extra.mkdir()
    with tempfile.TemporaryDirectory(dir='/var/tmp') as build:
        for module in _mdevs(pathlib.Path(build), version, release):
            shutil.copy(module, extra)
    sys.stdout.write(f'{", ".join(MDEVS)} for {version}: '
                     f'{time.monotonic() - began:.0f} s\n')


def _mdevs(folder: pathlib.Path, version: str,
           release: str) -> list[pathlib.Path]:
    """Build MDEVS for a kernel.

    :param version: the kernel's, ``uname -r``
    :param release: of Debian's packages of it
    :returns: the modules
    """
    needs = _unpack(f'linux-headers-{version}={release}', folder, 'Depends')
    for need in re.findall(r'linux-(?:headers|kbuild)-[^ ,]+', needs):
        _unpack(need, folder)
    headers = folder / 'usr/src' / f'linux-headers-{version}'
    # As it is in the package it includes one of an absolute path.
    makefile = headers / 'Makefile'
    makefile.write_text(makefile.read_text().replace(
        ' /usr/src/', f' {folder}/usr/src/'))
    samples = _samples(folder, '.'.join(version.split('.')[:2]), release)
    (samples / 'Makefile').write_text(
        f'obj-m := {" ".join(f"{name}.o" for name in MDEVS)}\n')
    # Debug information of types would need the kernel itself.
    _run('make', '-s', '-C', headers, f'M={samples}',
         'CONFIG_DEBUG_INFO_BTF_MODULES=', 'modules')
    return [samples / f'{name}.ko' for name in MDEVS]


def _samples(folder: pathlib.Path, series: str,
             release: str) -> pathlib.Path:
    """Create a folder with the sources of MDEVS only."""
    package = f'linux-source-{series}'
    # Where this very release is not offered, apt's choice of the series does
    # as well: the samples hardly change within one.
    if release in _run('apt-cache', 'madison', package).split():
        package += f'={release}'
    _unpack(package, folder)
    top = f'linux-source-{series}'
    samples = f'{top}/samples/vfio-mdev'
    # --occurrence: not on to the archive's end.
    _run('tar', '-x', '-I', 'xz -T0', '-f',
         folder / 'usr/src' / f'{top}.tar.xz', '-C', folder, '--occurrence',
         *(f'{samples}/{name}.c' for name in MDEVS))
    return folder / samples


def initrd(folder: pathlib.Path, base: pathlib.Path,
           version: str) -> pathlib.Path:
    """Create an initrd that mounts a root over 9p."""
    tree = folder / 'initrd'
    for name in ('bin', 'proc', 'sys', 'dev', 'ro', 'rw', 'root', 'mods'):
        (tree / name).mkdir(parents=True)
    shutil.copy('/bin/busybox', tree / 'bin/busybox')
    for applet in APPLETS:
        (tree / 'bin' / applet).symlink_to('busybox')
    order: list[str] = []
    for module in MODULES:
        for line in _run('modprobe', '-d', base, '-S', version,
                         '--show-depends', module).splitlines():
            if line.startswith('insmod '):
                _add_module(pathlib.Path(line.split()[1]), tree / 'mods',
                            order)
    (tree / 'mods/order').write_text('\n'.join(order) + '\n')
    init = tree / 'init'
    init.write_text(INIT.format(init=HERE / 'guest_init.bash'))
    init.chmod(0o755)
    image = folder / 'initrd.img'
    with image.open('wb') as output:
        names = '\n'.join(str(path.relative_to(tree))
                          for path in sorted(tree.rglob('*')))
        subprocess.run(['cpio', '-o', '-H', 'newc', '--quiet'], cwd=tree,
                       input=names.encode(), stdout=output, check=True)
    return image


def _add_module(path: pathlib.Path, folder: pathlib.Path,
                order: list[str]) -> None:
    unpack = {'.xz': ['xz', '-dc'], '.zst': ['zstd', '-dqc']}
    name = path.name if path.suffix == '.ko' else path.stem
    if name in order:
        return
    order.append(name)
    with (folder / name).open('wb') as output:
        subprocess.run([*unpack.get(path.suffix, ['cat']), str(path)],
                       stdout=output, check=True)


def changed_rom(folder: pathlib.Path) -> pathlib.Path:
    """Return an option ROM that differs from that of a display."""
    rom = bytearray(DISPLAY_ROM.read_bytes())
    rom[-1] ^= 0xff
    path = folder / 'changed.rom'
    path.write_bytes(rom)
    return path


def devices(rom: pathlib.Path | None = None) -> list[str]:
    """Return QEMU's arguments for the machine's PCI devices.

    :param rom: option ROM of the first display; None: its own
    """
    display = f'bochs-display,vgamem={MEMORY_MIB}M'
    first = display if rom is None else f'{display},romfile={rom}'
    arguments = [
        'intel-iommu,intremap=on,caching-mode=on',
        'pxb-pcie,id=pxb0,bus_nr=32,numa_node=0,bus=pcie.0',
        'pxb-pcie,id=pxb1,bus_nr=128,numa_node=1,bus=pcie.0',
        'nvme-subsys,id=subsys0']
    devices = [('pxb0', first), ('pxb0', display),
               ('pxb0', 'nvme,serial=n0,subsys=subsys0,sriov_max_vfs=4,'
                        'sriov_vq_flexible=8,sriov_vi_flexible=4,'
                        'max_ioqpairs=12,msix_qsize=9'),
               ('pxb1', display), ('pxb1', display),
               ('pxb1', f'{display},multifunction=on', 'ich9-intel-hda')]
    for number, (bus, *models) in enumerate(devices, start=1):
        arguments += [
            f'pcie-root-port,id=rp{number},bus={bus},chassis={number},'
            f'slot={number + 10},addr={number:x}.0,pref32-reserve=32M,'
            f'mem-reserve=2M',
            *(f'{model},bus=rp{number},addr=0.{function}'
              for function, model in enumerate(models))]
    return [word for argument in arguments for word in ('-device', argument)]


def _smbios(path: pathlib.Path, structure: bytes) -> pathlib.Path:
    path.write_bytes(structure)
    return path


def slot_label(folder: pathlib.Path) -> pathlib.Path:
    """Return a file with the SMBIOS structure of the slot of two displays."""
    return _smbios(folder / 'slot.smbios', smbios.slot(SLOT, *IN_SLOT))


def onboard_label(folder: pathlib.Path) -> pathlib.Path:
    """Return a file with the SMBIOS structure that labels the NVMe."""
    return _smbios(folder / 'onboard.smbios', smbios.onboard(ONBOARD, NVME))


class EmulatorCrashed(Exception):
    """Error: QEMU itself crashed, or its guest hung."""


def run(commands: list[list[str]]) -> int:
    """Run each command in its own boot, with one disk.

    If QEMU crashed or hung, everything is run again, and the output says so.

    :returns: the exit code of the first that failed, else 0; 124 when a guest
        did not end in time, or QEMU crashed or hung each time; 2 when the
        guest would not see what it is to run
    """
    for path in (HERE, pathlib.Path.cwd(), *(
            pathlib.Path(command[0]) for command in commands)):
        if hidden := _hidden_below(path):
            sys.stderr.write(
                f'{path} is below {hidden}, where the guest of the lab mounts '
                f'a file system of its own: move the checkout\n')
            return 2
    for _ in range(RESTARTS + 1):
        try:
            return _run_once(commands)
        except EmulatorCrashed as exc:
            sys.stdout.write(f'{exc}\n')
            sys.stdout.flush()
    return 124


def _hidden_below(path: pathlib.Path) -> str | None:
    """Return the folder of HIDDEN that a path is in, if it is in one."""
    return next((folder for folder in HIDDEN
                 if path.absolute().is_relative_to(folder)), None)


def _run_once(commands: list[list[str]]) -> int:
    with tempfile.TemporaryDirectory(dir='/var/tmp') as name:
        folder = pathlib.Path(name)
        out = folder / 'out'
        (out / 'kernel').mkdir(parents=True)
        image, version = kernel(out / 'kernel')
        ram = initrd(folder, out / 'kernel', version)
        _run(SCRUB_GUEST, '--kernel', image, out / 'scrub-guest')
        with (folder / 'disk').open('wb') as disk:
            disk.truncate(DISK)
        _run('mke2fs', '-q', '-t', 'ext4', folder / 'disk')
        for number, command in enumerate(commands):
            # Between two boots, somebody writes other firmware to a card.
            code = _boot(folder, out, image, ram, command,
                         changed_rom(folder) if number else None)
            if code:
                return code
        sys.stdout.write(f'Linux {version} under QEMU, '
                         f'{len(commands)} boots\n')
    return 0


def _boot(folder: pathlib.Path, out: pathlib.Path, image: pathlib.Path,
          ram: pathlib.Path, command: list[str],
          rom: pathlib.Path | None) -> int:
    (out / 'beat').write_text(f'{BEAT}\n')
    (out / 'command').write_text(
        f'cd {shlex.quote(str(pathlib.Path.cwd()))}\n'
        f'{shlex.join(command)}\n')
    output, rc = out / 'stdout', out / 'rc'
    for path in (output, rc, out / 'beats'):
        path.unlink(missing_ok=True)
    began = time.monotonic()
    try:
        code = _qemu(folder, out, image, ram, rom)
    finally:
        if output.exists():
            sys.stdout.write(output.read_text())
        if not rc.exists():
            sys.stdout.write(
                (folder / 'console').read_text(errors='replace')[-4000:])
        sys.stdout.write(f'{time.monotonic() - began:.0f} s\n')
        sys.stdout.flush()
    if -code in CRASHES:
        raise EmulatorCrashed(
            f'QEMU itself ended by {signal.Signals(-code).name}')
    return int(rc.read_text()) if rc.exists() else 124


def _qemu(folder: pathlib.Path, out: pathlib.Path, image: pathlib.Path,
          ram: pathlib.Path, rom: pathlib.Path | None) -> int:
    nested = bool(os.environ.get('GPGPU_LAB_NESTED'))
    # If one thread runs both vCPUs in turn, a nested guest may spin forever.
    # With a thread for each, QEMU 7.2 may crash while both are online.
    thread = 'multi' if nested else 'single'
    arguments = [
        'qemu-system-x86_64', '-nodefaults', '-no-user-config', '-display',
        'none', '-machine', 'q35,usb=off,vmport=off', '-accel',
        f'tcg,thread={thread},tb-size=512', '-cpu',
        NESTED_CPU if nested else CPU, '-smp', '2,sockets=2', '-m', '2G',
        '-object', 'memory-backend-ram,id=m0,size=1024M',
        '-object', 'memory-backend-ram,id=m1,size=1024M',
        '-numa', 'node,nodeid=0,cpus=0,memdev=m0',
        '-numa', 'node,nodeid=1,cpus=1,memdev=m1',
        '-smbios', f'file={slot_label(folder)}',
        '-smbios', f'file={onboard_label(folder)}',
        '-no-reboot', '-serial', f'file:{folder / "console"}', '-monitor',
        'none', '-kernel', str(image), '-initrd', str(ram), '-append',
        'console=ttyS0 quiet loglevel=4 panic=-1 tsc=reliable '
        'no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1 '
        'intel_iommu=on mitigations=off audit=0 random.trust_cpu=on '
        # The second CPU, of NUMA node 1, stays offline: with both, QEMU 7.2
        # crashed now and then, and a vCPU that had to share a core made the
        # other one wait for it busily.
        f'nokaslr maxcpus=1 {MARK}',
        '-fsdev', 'local,id=fs0,path=/,security_model=none,readonly=on,'
                  'multidevs=remap',
        '-device', 'virtio-9p-pci,fsdev=fs0,mount_tag=labroot',
        '-fsdev', f'local,id=fs1,path={out},security_model=none',
        '-device', 'virtio-9p-pci,fsdev=fs1,mount_tag=labout',
        '-drive', f'file={folder / "disk"},if=none,id=d0,format=raw,'
                  'cache=unsafe',
        '-device', 'virtio-blk-pci,drive=d0', *devices(rom)]
    with subprocess.Popen(arguments, stdin=subprocess.DEVNULL) as process:
        try:
            return wait_for(process, (out / 'stdout', folder / 'console'),
                            out / 'beats')
        finally:
            process.kill()


class _Changes:
    """Times at which files last changed their size.

    :ivar at: times of time.monotonic(), by path; files that do not exist are
        not among them
    """

    def __init__(self, paths: Iterable[pathlib.Path]) -> None:
        self._paths = tuple(paths)
        self._sizes: dict[pathlib.Path, int] = {}
        self.at: dict[pathlib.Path, float] = {}

    def update(self, now: float) -> None:
        for path in self._paths:
            if path.exists() and self._sizes.get(path) != (
                    size := path.stat().st_size):
                self._sizes[path], self.at[path] = size, now


def wait_for(process: subprocess.Popen[bytes],
             outputs: Iterable[pathlib.Path],
             beats: pathlib.Path) -> int:
    """Return the exit code of QEMU, which is ended after TIMEOUT.

    :param outputs: files to which the guest writes what it does
    :param beats: file to which the guest writes while it works
    :raises EmulatorCrashed: it wrote no output for SILENCE, or no beat for
        BEAT_TIMEOUT
    """
    began = time.monotonic()
    wrote, beat = _Changes(outputs), _Changes([beats])
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(1)
        now = time.monotonic()
        wrote.update(now)
        beat.update(now)
        if now - began > TIMEOUT:
            process.kill()
        if now - max(wrote.at.values(), default=began) > SILENCE:
            raise EmulatorCrashed(
                f'The guest hung: it wrote nothing for {SILENCE} s')
        # Before it has booted, it gives none.
        if now - max(beat.at.values(), default=now) > BEAT_TIMEOUT:
            raise EmulatorCrashed(
                f'The guest hung: it gave no beat for {BEAT_TIMEOUT} s')


def end_with_sigterm() -> None:
    """Let SIGTERM leave the contexts, which end QEMU and remove its files."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


if __name__ == '__main__':
    end_with_sigterm()
    sys.exit(run([list(words) for then, words in itertools.groupby(
        sys.argv[1:], '--then'.__eq__) if not then]))
