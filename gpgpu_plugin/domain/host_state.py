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
"""States of hosts."""

from __future__ import annotations

import enum


class HostState(enum.StrEnum):
    """Whether instances can come to a host.

    ``up``: its nova-compute called the conductors lately. ``silent``: it has
    not called for ``[gpgpu] session_timeout`` seconds, so that nothing of the
    host can be claimed or cleaned. ``disabled``: it calls, but an operator has
    disabled it in Nova, which then selects the host for nothing.
    ``draining``: no instance gets a device of it (``host drain``).
    """

    UP = 'up'
    SILENT = 'silent'
    DISABLED = 'disabled'
    DRAINING = 'draining'
