# SPDX-License-Identifier: Apache-2.0
"""Extensions: classes that packages register as entry points."""

from __future__ import annotations

import typing
from importlib import metadata

from stevedore import driver
from stevedore import exception as stevedore_exception
from stevedore import extension

from gpgpu_plugin import exception

BACKENDS = 'gpgpu_plugin.backends'
HOSTS = 'gpgpu_plugin.hosts'
RESOURCE_TRACKERS = 'gpgpu_plugin.resource_trackers'
SCHEDULER_FILTERS = 'gpgpu_plugin.scheduler_filters'
SCHEDULER_WEIGHTS = 'gpgpu_plugin.scheduler_weights'


def _failed(manager: object, entry_point: metadata.EntryPoint,
            error: BaseException) -> None:
    # An extension that is silently left out, such as a filter, is worse than
    # a service that does not start.
    raise exception.ConfigInvalid(
        option=f'entry point {entry_point.name}',
        reason=f'{entry_point.value} cannot be loaded: {error}') from error


def load(namespace: str, name: str, option: str = '') -> typing.Any:
    """Return the extension of a name.

    :param option: where the name is configured
    :raises ConfigInvalid: it does not exist or cannot be loaded
    """
    try:
        return driver.DriverManager(
            namespace, name, on_load_failure_callback=_failed).driver
    except stevedore_exception.NoMatches:
        known = ', '.join(sorted(
            extension.ExtensionManager(namespace).names())) or 'none'
        raise exception.ConfigInvalid(
            option=option or f'entry point {name}',
            reason=f'{namespace} has no entry point {name} (known: {known})',
        ) from None


def load_all(namespace: str) -> dict[str, type]:
    """Return all extensions by name.

    :raises ConfigInvalid: one of them cannot be loaded
    """
    manager: extension.ExtensionManager[object] = extension.ExtensionManager(
        namespace, on_load_failure_callback=_failed)
    return {found.name: found.plugin for found in manager}
