#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Parts that are named by entry points, so that others can add their own."""

from __future__ import annotations

import typing

from stevedore import driver
from stevedore import exception as stevedore_exception
from stevedore import extension

from gpgpu_plugin import exception

HOSTS = 'gpgpu_plugin.hosts'
SCHEDULER_FILTERS = 'gpgpu_plugin.scheduler_filters'


def _failed(manager: object, entry_point: typing.Any,
            error: BaseException) -> None:
    # A part that is silently not there, such as a filter that does not
    # filter, is worse than none.
    raise exception.ConfigInvalid(
        option=f'entry point {entry_point.name}',
        reason=f'{entry_point.value} cannot be loaded: {error}') from error


def load(namespace: str, name: str) -> typing.Any:
    """The one part of a name.

    :raises ConfigInvalid: there is none, or it cannot be loaded
    """
    try:
        return driver.DriverManager(
            namespace, name, on_load_failure_callback=_failed).driver
    except stevedore_exception.NoMatches:
        known = ', '.join(sorted(
            extension.ExtensionManager(namespace).names())) or 'none'
        raise exception.ConfigInvalid(
            option=f'entry point {name}',
            reason=f'there is none in {namespace}, which has {known}',
        ) from None


def load_all(namespace: str) -> dict[str, typing.Any]:
    """All parts, by name.

    :raises ConfigInvalid: one of them cannot be loaded
    """
    manager: extension.ExtensionManager[typing.Any] = (
        extension.ExtensionManager(
            namespace, on_load_failure_callback=_failed))
    return {each.name: each.plugin for each in manager}
