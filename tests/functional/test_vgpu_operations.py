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
"""Every operation of Nova with vGPUs: what the tests of whole cards do and
compare, on mdevs and on VFs."""

from __future__ import annotations

import typing

from tests.fixtures import vgpu_cloud
from tests.functional import test_killed
from tests.functional import test_moves
from tests.functional import test_operations


class KeepingTest(vgpu_cloud.Mdevs, test_operations.KeepingTest):
    """The server keeps its vGPUs."""


class GivingBackTest(vgpu_cloud.Mdevs, test_operations.GivingBackTest):
    """The server gives its vGPUs back."""


class TwoHostsTest(vgpu_cloud.Mdevs, test_moves.TwoHostsTest):
    """Resize and cold migration to another host."""


class EvacuateTest(vgpu_cloud.Mdevs, test_moves.EvacuateTest):
    """The first of two hosts dies."""


class OneHostTest(vgpu_cloud.Mdevs, test_moves.OneHostTest):
    """Both sides on one host."""

    vgpu_type = 'T4-4Q'
    units = 8
    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'nvidia-t4-2'}


class KilledGivingBackTest(vgpu_cloud.Mdevs, test_killed.GivingBackTest):
    """nova-compute ends while vGPUs are got or given back."""


class KilledMovesTest(vgpu_cloud.Mdevs, test_killed.MovesTest):
    """nova-compute ends in the middle of a move."""


class TypedVFsGivingBackTest(vgpu_cloud.TypedVFs,
                             test_operations.GivingBackTest):
    """The server gives VFs with types back."""


class TypedVFsTwoHostsTest(vgpu_cloud.TypedVFs, test_moves.TwoHostsTest):
    """Resize and cold migration of a server with VFs that have types."""

    # Of claims and Placement, to which it makes no difference what is held.
    test_claim_that_is_never_used_ends = None
    test_confirmation_fails = None
    test_deleted_before_it_is_decided = None
    test_denied = None
    test_no_conductor = None
    test_placement_is_left_alone_while_nova_confirms = None
    test_rebooted_and_stopped_before_it_is_decided = None


class PlainVFsGivingBackTest(vgpu_cloud.PlainVFs,
                             test_operations.GivingBackTest):
    """The server gives VFs back."""


class PlainVFsEvacuateTest(vgpu_cloud.PlainVFs, test_moves.EvacuateTest):
    """The first of two hosts with VFs dies."""
