# SPDX-License-Identifier: Apache-2.0
"""Instances that use the PCI functions of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import configuration
from gpgpu_plugin.compute import withheld


def read(command: base.Command,
         ) -> tuple[Mapping[str, Sequence[str]], str | None]:
    """Return the instances by the id of a function.

    The remark on stderr says why there may be more. There is none on a
    machine on which nova-compute never ran with the plugin.

    :returns: instances, and why there may be more; None: there are none
    """
    try:
        conf = command.manage.given_conf or configuration.read(
            command.app.options, [base.NOVA_CONFIG_FILE])
        path: str = conf.gpgpu_compute.state_path
    except (cfg.Error, exception.HostError) as exc:
        return _doubted(command, {}, configuration.message(exc))
    if not os.path.lexists(path):
        return {}, f'{path} does not exist'
    users = withheld.users(path)
    if users.doubt is not None:
        return _doubted(command, users.instances, users.doubt)
    return users.instances, None


def _doubted(command: base.Command, instances: Mapping[str, Sequence[str]],
             doubt: str) -> tuple[Mapping[str, Sequence[str]], str]:
    command.note(
        f'it is unknown which instances use other functions: {doubt}')
    return instances, doubt
