# SPDX-License-Identifier: Apache-2.0
"""Filters for nova-scheduler, and the function by which Nova finds them.

``[filter_scheduler] available_filters`` names ``all_filters`` beside Nova's
own value.
"""

from __future__ import annotations

from gpgpu_plugin import extensions


def all_filters() -> list[type]:
    """Return the filter classes of all entry points.

    :raises ConfigInvalid: one of them cannot be loaded
    """
    return list(extensions.load_all(
        extensions.SCHEDULER_FILTERS).values())
