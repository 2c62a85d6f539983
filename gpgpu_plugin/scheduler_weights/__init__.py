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
