# SPDX-License-Identifier: Apache-2.0
"""Names of servers on the command line: a UUID, or the name that Nova has.

A UUID needs no Nova. Only a name loads openstacksdk, which takes a second.
"""

from __future__ import annotations

import importlib
import typing
import uuid

from gpgpu_plugin.cmd import base

# For annotations alone, see above.
if typing.TYPE_CHECKING:
    import types

HELP = 'UUID or name of the server'

_LOOKUP = 'gpgpu_plugin.cmd.server_lookup'


def uuid_of(command: base.Command, text: str) -> str:
    """Return the UUID of a server, as Nova writes it.

    :raises NotFound: Nova has no server of this name
    :raises Conflict: Nova has several, or does not answer
    """
    try:
        return str(uuid.UUID(text))
    except ValueError:
        pass
    lookup: types.ModuleType = importlib.import_module(_LOOKUP)
    found: str = lookup.uuid_of(command.manage, text)
    return found


def optional(command: base.Command, text: str | None) -> str | None:
    """Return the UUID of a server that may be left out."""
    return uuid_of(command, text) if text else None
