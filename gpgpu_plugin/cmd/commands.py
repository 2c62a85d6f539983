# SPDX-License-Identifier: Apache-2.0
"""The commands of gpgpu-manage by name, without importing them."""

from __future__ import annotations

import functools
from importlib import metadata

from cliff import command
from cliff import commandmanager


class CommandManager(commandmanager.CommandManager):
    """Command manager that imports only the command that is called.

    Commands are entry points. cliff's own manager imports all modules of the
    namespace, and with them openstacksdk, SQLAlchemy and oslo.messaging, which
    takes a second.
    """

    def add_command(self, name: str,
                    command_class: type[command.Command]) -> None:
        """Add a command of cliff, unless the plugin has one of this name."""
        if name not in self.commands:
            super().add_command(name, command_class)

    def load_commands(self, namespace: str) -> None:
        """Add the command names of a namespace."""
        self.group_list.append(namespace)
        for entry_point in _entry_points(namespace):
            self.commands[entry_point.name.replace('_', ' ')] = entry_point


@functools.cache
def _entry_points(namespace: str) -> metadata.EntryPoints:
    # To look for them takes longer than many a command.
    return metadata.entry_points(group=namespace)
