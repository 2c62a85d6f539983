# SPDX-License-Identifier: Apache-2.0
"""Some tests of operations with whole GPUs, run again with mdevs and VFs.

The operations are the same for all kinds of devices. Only those that prepare,
attach, restore or release devices in another way are run again.
"""

from __future__ import annotations

import typing

from tests.fixtures import vgpu_cloud
from tests.functional import test_failed_moves
from tests.functional import test_killed
from tests.functional import test_moves
from tests.functional import test_operations


@vgpu_cloud.only(
    'test_reboots_keep_devices',
    'test_rescue_keeps_devices',
    'test_rebuild_keeps_devices_even_if_it_fails',
    'test_restored_server_keeps_devices')
class SameHostTest(vgpu_cloud.Mdevs, test_operations.SameHostTest):
    """The server keeps its vGPUs."""


@vgpu_cloud.only(
    'test_delete_frees_devices',
    'test_shelve_frees_devices_and_unshelve_claims_again')
class ReleaseTest(vgpu_cloud.Mdevs, test_operations.ReleaseTest):
    """Operations that release the server's vGPUs."""


@vgpu_cloud.only(
    'test_confirmed_resize_leaves_devices_of_destination',
    'test_reverted_resize_leaves_devices_of_source')
class TwoHostsTest(vgpu_cloud.Mdevs, test_moves.TwoHostsTest):
    """Resize and cold migration to another host."""


@vgpu_cloud.only(
    'test_restarts_before_confirmation_keep_both_sets',
    'test_source_that_fails_after_the_claim_keeps_server',
    'test_destination_that_fails_is_repaired_by_hard_reboot')
class FailedTwoHostsTest(vgpu_cloud.Mdevs, test_failed_moves.TwoHostsTest):
    """Moves to another host that fail in the middle."""


@vgpu_cloud.only('test_returned_host_releases_devices_of_evacuated_server')
class EvacuateTest(vgpu_cloud.Mdevs, test_moves.EvacuateTest):
    """The first of two hosts dies."""


@vgpu_cloud.only('test_evacuation_that_fails_can_be_repeated')
class FailedEvacuateTest(vgpu_cloud.Mdevs, test_failed_moves.EvacuateTest):
    """The first of two hosts dies, and the evacuation fails."""


class OneHostTest(vgpu_cloud.Mdevs, test_moves.OneHostTest):
    """Source and destination on one host."""

    vgpu_type = 'T4-4Q'
    units = 8
    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'nvidia-t4-2'}


@vgpu_cloud.only(
    'test_delete_is_completed_at_start',
    'test_boot_without_guest_is_released_at_start')
class KilledReleaseTest(vgpu_cloud.Mdevs, test_killed.ReleaseTest):
    """nova-compute is killed while vGPUs are claimed or released."""


@vgpu_cloud.only(
    'test_destination_killed_before_the_guest_keeps_both_claims',
    'test_revert_killed_on_source_leaves_server_on_source')
class KilledMovesTest(vgpu_cloud.Mdevs, test_killed.MovesTest):
    """nova-compute is killed in the middle of a move."""


@vgpu_cloud.only('test_shelve_frees_devices_and_unshelve_claims_again')
class TypedVFsReleaseTest(vgpu_cloud.TypedVFs, test_operations.ReleaseTest):
    """Operations that release VFs with types."""


@vgpu_cloud.only(
    'test_confirmed_resize_leaves_devices_of_destination',
    'test_reverted_resize_leaves_devices_of_source')
class TypedVFsTwoHostsTest(vgpu_cloud.TypedVFs, test_moves.TwoHostsTest):
    """Resize and cold migration of a server with VFs that have types."""


@vgpu_cloud.only('test_destination_that_fails_is_repaired_by_hard_reboot')
class TypedVFsFailedTwoHostsTest(vgpu_cloud.TypedVFs,
                                 test_failed_moves.TwoHostsTest):
    """Moves of a server with VFs that have types, failing in the middle."""


@vgpu_cloud.only('test_shelve_frees_devices_and_unshelve_claims_again')
class PlainVFsReleaseTest(vgpu_cloud.PlainVFs, test_operations.ReleaseTest):
    """Operations that release plain VFs."""


@vgpu_cloud.only('test_returned_host_releases_devices_of_evacuated_server')
class PlainVFsEvacuateTest(vgpu_cloud.PlainVFs, test_moves.EvacuateTest):
    """The first of two hosts with VFs dies."""
