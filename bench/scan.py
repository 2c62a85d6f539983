# SPDX-License-Identifier: Apache-2.0
"""A scan of 8 PFs and 256 VFs compared with lspci, and the no-change check.

lspci is a whole process, as its users run it; ours runs inside nova-compute
and is measured there. Both read the same tree, page cache warm.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable

from bench import report
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.discovery import watch
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import machine

ROUNDS = 9


def _median(work: Callable[[], object]) -> float:
    """Return the median seconds of some rounds, after one to warm up."""
    work()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def run() -> report.Result:
    """Measure, and check that every change is noticed."""
    with tempfile.TemporaryDirectory() as root:
        machine.build(machine.synthetic(), root)
        kernel = fake_kernel.FakeKernel(root)
        sysfs = sysfs_mod.Sysfs(root)
        pfs = [function for function in scanner.scan(sysfs).functions
               if function.sriov_totalvfs]
        for pf in pfs:
            kernel.write(f'bus/pci/devices/{pf.address}/sriov_numvfs', '32')
        scan = scanner.scan(sysfs)
        watcher = watch.Watch(sysfs, scan)
        rows = (
            report.Row(
                what=f'scan of {len(scan.functions)} functions', unit='ms',
                ours=_median(lambda: scanner.scan(sysfs)) * 1e3,
                peer=_lspci(root), note='peer: lspci',
                goal=report.Goal(at_most=1, ratio=True)),
            report.Row(what='no-change check', unit='ms',
                       ours=_median(watcher.changed) * 1e3,
                       goal=report.Goal(at_most=0.5)))
        watcher.close()
        return report.Result(
            name='scan', rows=rows,
            wrong=_wrong(sysfs, kernel, pfs[0].address))


def _lspci(root: str) -> float:
    command = ['lspci', '-A', 'linux-sysfs', '-O',
               f'sysfs.path={root}/bus/pci']
    return 1e3 * _median(lambda: subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL))


def _wrong(sysfs: sysfs_mod.Sysfs, kernel: fake_kernel.FakeKernel,
           pf: str) -> tuple[str, ...]:
    """Return the changes that the check does not notice."""
    changes = {
        'a driver unbound': ('bus/pci/drivers/gim/unbind', pf),
        'a driver bound': ('bus/pci/drivers/gim/bind', pf),
        'sriov_numvfs changed': (
            f'bus/pci/devices/{pf}/sriov_numvfs', '0'),
        'a function removed': (f'bus/pci/devices/{pf}/remove', '1'),
    }
    missed = []
    for what, (path, value) in changes.items():
        watcher = watch.Watch(sysfs, scanner.scan(sysfs))
        if watcher.changed():
            missed.append(f'a change is seen before {what}')
        kernel.write(path, value)
        if not watcher.changed():
            missed.append(f'{what} is not noticed')
        watcher.close()
    return tuple(missed)
