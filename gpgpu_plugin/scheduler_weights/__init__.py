# SPDX-License-Identifier: Apache-2.0
"""Weighers for nova-scheduler, and the function by which Nova finds them.

``[filter_scheduler] weight_classes`` names ``all_weighers`` beside Nova's own
value.
"""

from __future__ import annotations

from gpgpu_plugin import extensions


def all_weighers() -> list[type]:
    """Return the weigher classes of all entry points.

    :raises ConfigInvalid: one of them cannot be loaded
    """
    return list(extensions.load_all(
        extensions.SCHEDULER_WEIGHTS).values())
