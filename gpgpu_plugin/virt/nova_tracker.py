# SPDX-License-Identifier: Apache-2.0
"""Resource tracker of Nova's compute manager.

Its methods are private to Nova, so the signatures of those that the plugin
wraps are checked when nova-compute starts.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable

from gpgpu_plugin import exception
from gpgpu_plugin.compute import nova_types

_WRAPPED = ('resize_claim', 'delete_allocation_for_evacuated_instance')


def of(virtapi: object) -> nova_types.NovaResourceTracker:
    """Return the resource tracker of Nova's compute manager.

    :raises ConfigInvalid: this Nova has none, or its methods have other
        parameters
    """
    tracker = getattr(getattr(virtapi, '_compute', None), 'rt', None)
    for name in _WRAPPED:
        method = getattr(tracker, name, None)
        expected = _parameters(
            getattr(nova_types.NovaResourceTracker, name))[1:]
        found = [] if method is None else _parameters(method)
        if found != expected:
            raise exception.ConfigInvalid(
                option='compute_driver',
                reason=f'method {name} of Nova\'s resource tracker has '
                       f'parameters ({", ".join(found)}), and this version '
                       f'of gpgpu_plugin works with ({", ".join(expected)}). '
                       f'Install a version of Nova that it supports')
    return typing.cast('nova_types.NovaResourceTracker', tracker)


def _parameters(method: Callable[..., object]) -> list[str]:
    return list(inspect.signature(method).parameters)
