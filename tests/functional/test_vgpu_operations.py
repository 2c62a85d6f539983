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
"""Tests of operations with whole GPUs, run again with mdevs and VFs."""

from __future__ import annotations

import typing

from tests.fixtures import vgpu_cloud
from tests.functional import test_killed
from tests.functional import test_moves
from tests.functional import test_operations


class SameHostTest(vgpu_cloud.Mdevs, test_operations.SameHostTest):
    """The server keeps its vGPUs."""


class ReleaseTest(vgpu_cloud.Mdevs, test_operations.ReleaseTest):
    """Operations that release the server's vGPUs."""


class TwoHostsTest(vgpu_cloud.Mdevs, test_moves.TwoHostsTest):
    """Resize and cold migration to another host."""


class EvacuateTest(vgpu_cloud.Mdevs, test_moves.EvacuateTest):
    """The first of two hosts dies."""


class OneHostTest(vgpu_cloud.Mdevs, test_moves.OneHostTest):
    """Source and destination on one host."""

    vgpu_type = 'T4-4Q'
    units = 8
    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'nvidia-t4-2'}


class KilledReleaseTest(vgpu_cloud.Mdevs, test_killed.ReleaseTest):
    """nova-compute is killed while vGPUs are claimed or released."""


class KilledMovesTest(vgpu_cloud.Mdevs, test_killed.MovesTest):
    """nova-compute is killed in the middle of a move."""


class TypedVFsReleaseTest(vgpu_cloud.TypedVFs,
                             test_operations.ReleaseTest):
    """Operations that release VFs with types."""


class TypedVFsTwoHostsTest(vgpu_cloud.TypedVFs, test_moves.TwoHostsTest):
    """Resize and cold migration of a server with VFs that have types."""

    # Of claims and Placement, to which it makes no difference what is held.
    test_claim_of_dead_source_ends_after_its_migration = None
    test_confirmation_that_fails_keeps_both_sets = None
    test_delete_of_resized_server_frees_both_sets = None
    test_denied = None
    test_migration_without_conductor_leaves_server_on_source = None
    test_inventory_stays_while_nova_confirms = None
    test_restarts_before_confirmation_keep_both_sets = None


class PlainVFsReleaseTest(vgpu_cloud.PlainVFs,
                             test_operations.ReleaseTest):
    """Operations that release plain VFs."""


class PlainVFsEvacuateTest(vgpu_cloud.PlainVFs, test_moves.EvacuateTest):
    """The first of two hosts with VFs dies."""
