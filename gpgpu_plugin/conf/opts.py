# SPDX-License-Identifier: Apache-2.0
"""List of all options of the plugin, for oslo-config-generator and the docs.

Libraries list their own options (``[database]``, ``[DEFAULT] transport_url``,
logging); the generator's configuration names the libraries.
"""

from __future__ import annotations

import importlib
import pkgutil

from oslo_config import cfg

import gpgpu_plugin.conf


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the groups and options of all modules beside this one."""
    opts: list[tuple[cfg.OptGroup, list[cfg.Opt]]] = []
    for module in sorted(
            pkgutil.iter_modules(gpgpu_plugin.conf.__path__),
            key=lambda module: module.name):
        if module.name != 'opts':
            name = f'{gpgpu_plugin.conf.__name__}.{module.name}'
            opts.extend(importlib.import_module(name).list_opts())
    return opts
