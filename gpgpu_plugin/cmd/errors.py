# SPDX-License-Identifier: Apache-2.0
"""Messages of errors for the operator, without any traceback.

Errors of libraries are handled by the modules that import these libraries, so
that other commands do not load them: cmd.configuration for oslo.config,
cmd.reach for oslo.messaging.
"""

from __future__ import annotations

from gpgpu_plugin import exception

_LISTS = {
    'PCI function': 'list',
    'active assignment': 'assignment list',
    'assignment': 'assignment list',
    'assignment of instance': 'assignment list',
    'device': 'device list --all',
    'host': 'host list',
    'usage': 'usage list',
    'valid key of': 'key list',
    'variant': 'variant list',
}
"""Command that lists all objects of a kind."""


class UsageError(Exception):
    """The command line is wrong in a way that argparse does not find."""


def message(exc: Exception) -> str:
    """Return the message of an error.

    ``str`` of an error that came by RPC has the remote traceback appended;
    its first argument is the message alone.
    """
    if isinstance(exc, (exception.GPUPluginException, UsageError)):
        return str(exc.args[0])
    if isinstance(exc, OSError) and exc.filename and exc.strerror:
        return f'{exc.filename}: {exc.strerror}'
    return f'{type(exc).__name__}: {first_line(exc)}'


def hint(exc: Exception, program: str) -> str:
    """Return which command lists what an error does not find, if one does."""
    kind = exc.kwargs.get('kind') if isinstance(
        exc, exception.NotFound) else None
    command = _LISTS.get(str(kind))
    return f'; see "{program} {command}"' if command else ''


def first_line(value: object) -> str:
    """Return the first line of a text that may have many."""
    return str(value).strip().partition('\n')[0]
