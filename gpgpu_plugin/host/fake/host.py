# SPDX-License-Identifier: Apache-2.0
"""Fake hosts: the real scanner and backends on a fake kernel."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping

from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.host import base
from gpgpu_plugin.host import health
from gpgpu_plugin.host import local
from gpgpu_plugin.host.discovery import machine as machine_host
from gpgpu_plugin.host.discovery import scanner
from gpgpu_plugin.host.discovery import sysfs as sysfs_mod
from gpgpu_plugin.host.fake import kernel as fake_kernel
from gpgpu_plugin.host.fake import machine as machine_mod
from gpgpu_plugin.host.vfio import baseline
from gpgpu_plugin.host.vfio import binding
from gpgpu_plugin.host.vfio import designation


class FakeHost(local.LocalHost):
    """A host whose sysfs is a tree of gpgpu_plugin.host.fake.machine.

    :ivar kernel: lets tests make writes fail
    """

    def __init__(self, root: str,
                 numvfs: Mapping[str, int] | None = None, *,
                 withhold_degraded: bool = False) -> None:
        self.kernel = fake_kernel.FakeKernel(root)
        self.designations = designation.Store(f'{root}/etc')
        sysfs = sysfs_mod.Sysfs(root)
        super().__init__(base.Access(
            sysfs=sysfs, binder=binding.Binder(
                sysfs, self.kernel.write, self.kernel.load_vfio,
                lambda path: (pathlib.Path(root) / path).read_bytes(),
                self.kernel.sriov_manage),
            is_designated=self.designations.holds,
            baselines=baseline.Baselines(f'{root}/etc/cards'),
            vfio=self.kernel.vfio), health.HealthBook(
                sysfs, f'{root}/etc/health/errors.json',
                withhold_degraded=withhold_degraded), numvfs)

    def identity(self, scan: scanner.Scan) -> host_rules.MachineIdentity:
        """Return the identity of the fake machine.

        Its folder names it: another folder is another machine.
        """
        return dataclasses.replace(
            machine_host.read_identity(scan.functions,
                                       str(self.access.sysfs.root)),
            machine_id=str(self.access.sysfs.root))

    @classmethod
    def for_machine(cls, name: str, folder: str,
                    numvfs: Mapping[str, int] | None = None, *,
                    withhold_degraded: bool = False,
                    owner: str | None = None) -> FakeHost:
        """Return a host for the machine in a folder.

        The machine is built if the folder has none. An existing one is kept
        as it is, as hardware outlives a restart of nova-compute.

        :param name: see gpgpu_plugin.host.fake.machine.load
        :param owner: whose cards have serial numbers of their own; None: those
            of the description
        :raises NotFound: no such machine
        :raises Invalid: the file is not a machine
        """
        machine = machine_mod.load(name)
        if not (pathlib.Path(folder) / 'bus/pci/devices').is_dir():
            machine_mod.build(machine, folder)
            if owner is not None:
                machine_mod.number_cards(folder, owner)
        return cls(folder, numvfs, withhold_degraded=withhold_degraded)

    @classmethod
    def for_host(cls, conf: cfg.ConfigOpts, host: str,
                 guests: base.Guests | None = None) -> FakeHost:
        # No guest can have a fake GPU, so the step scrub-guest waits.
        options, option = conf.gpgpu_fake, '[gpgpu_fake] machine'
        if host in options.machines:
            option = f'[gpgpu_fake] machines ({host})'
        try:
            return cls.for_machine(
                options.machines.get(host, options.machine),
                os.path.join(conf.gpgpu_compute.state_path, 'machines', host),
                conf_gpgpu.numvfs(conf), owner=host,
                withhold_degraded=conf.gpgpu_compute.withhold_degraded)
        except (exception.NotFound, exception.Invalid) as exc:
            raise exception.ConfigInvalid(
                option=option, reason=str(exc)) from exc
