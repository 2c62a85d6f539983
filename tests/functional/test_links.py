# SPDX-License-Identifier: Apache-2.0
"""Servers with linked GPUs: boot, refusals, resize, migration, evacuation."""

from __future__ import annotations

import json
import pathlib
import typing

import fixtures

from tests.fixtures import cloud
from tests.functional import test_moves
from tests.functional import test_weigher

MODULES = {str(number): f'GPU{number}' for number in range(1, 9)}
"""Module ids of the GPUs of machine hgx-h100-8 by slot, as if they were so."""
PAIRS = ((1, 3), (2, 4), (5, 7), (6, 8))
HALVES = ((1, 2, 3, 4), (5, 6, 7, 8))
PARTITIONS = [tuple(range(1, 9)), *HALVES, *PAIRS,
              *((number,) for number in range(1, 9))]
"""Partitions as DGX H200 has them: pairs are not neighbours."""


def halves(modules: typing.Iterable[int]) -> set[tuple[int, ...]]:
    """Return the halves of the board in which some GPUs are."""
    return {half for half in HALVES for number in modules if number in half}


class LinkedMixin:
    """Cloud of HGX servers whose link partitions are stated.

    :cvar fabric: whether their boards allow nothing else
    """

    machines: typing.ClassVar[dict[str, str]] = {
        'gpu1': 'hgx-h100-8', 'gpu2': 'hgx-h100-8'}
    variants: typing.ClassVar[tuple[tuple[str, ...], ...]] = (
        ('H100', *cloud.HGX_H100),)
    fabric = True
    useFixture: typing.Any
    manage: typing.Any
    devices: typing.Any
    flavor_of: typing.Any

    def state_links(self) -> None:
        """State the link partitions of all hosts."""
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).join('f'))
        path.write_text(json.dumps({
            'named_by': 'slot', 'modules': MODULES, 'fabric': self.fabric,
            'partitionInfo': [
                {'partitionId': number, 'gpuModuleIds': list(modules)}
                for number, modules in enumerate(PARTITIONS)]}))
        self.manage('variant', 'set', 'H100', '--link-partitions', str(path))

    def linked(self, count: int, topology: str = 'linked') -> str:
        """Create a flavor of so many GPUs."""
        return str(self.flavor_of({
            'resources:CUSTOM_GPU_H100': str(count),
            'gpgpu:topology': topology}))

    def modules(self, server: dict[str, typing.Any],
                host: str = 'gpu1') -> tuple[int, ...]:
        """Return the module ids of a server's GPUs on a host."""
        return tuple(sorted(
            int(device['slot'].removeprefix('GPU'))
            for device in self.devices('--used-by', server['id'])
            if device['host'] == host))


class BootTest(LinkedMixin, cloud.GpuCloud):

    machines: typing.ClassVar[dict[str, str]] = {'gpu1': 'hgx-h100-8'}

    def setUp(self) -> None:
        super().setUp()
        self.state_links()

    def test_servers_get_partitions_and_others_are_refused_with_reason(
            self) -> None:
        single = self.boot(self.linked(1))
        four = self.boot(self.linked(4))
        self.assertIn(self.modules(four), HALVES)
        two = self.boot(self.linked(2))
        self.assertIn(self.modules(two), PAIRS)
        # All of the half in which one is used already.
        self.assertEqual(
            1, len(halves(self.modules(single) + self.modules(two))))
        self.wait_states(assigned=7, available=1)
        self.delete(two)
        self.wait_states(assigned=5, available=3)
        self.wait_inventory(8, 0)
        for topology, reason in (('linked', 'topology_linked'),
                                 ('any', 'link_partition')):
            failed = self.boot(self.linked(3, topology), 'ERROR')
            self.assertIn(reason, self.stdlog.logger.output)
            self.assertEqual(set(), self.devices_of(failed))
        [shown] = [row for row in self.listing('group', 'list')
                   if row['variant'] == 'H100']
        self.assertEqual(['3 of 1', '1 of 2'], shown['free_partition_counts'])
        self.delete(single, four)

    def test_filter_off_the_claim_refuses(self) -> None:
        self.restart_scheduler('ComputeFilter')
        failed = self.boot(self.linked(3), 'ERROR')
        self.assertIn('topology_linked', self.stdlog.logger.output)
        self.assertEqual(set(), self.devices_of(failed))
        self.wait_states(available=8)

    def test_without_a_table_nothing_is_linked(self) -> None:
        self.manage('variant', 'set', 'H100', '--unset', 'link-partitions')
        self.boot(self.linked(2), 'ERROR')
        self.assertIn('topology_linked', self.stdlog.logger.output)
        server = self.boot(self.linked(3, 'any'))
        self.assertEqual(3, len(self.modules(server)))
        # It came with the second decision.
        self.wait_for(lambda: 'its links are not known' in str(self.listing(
            'event', 'list', '--kind', 'filter_refused', '--long')),
            'event with the reason')


class MoveCase(LinkedMixin, test_moves.MovesCase):
    """Base class of moves of a server with two linked GPUs."""

    variant = 'H100'

    def boot(self, flavor: str, expected: str = 'ACTIVE',
             **extra: typing.Any) -> dict[str, typing.Any]:
        """Boot a server when the links are stated."""
        self.state_links()
        return super().boot(flavor, expected, **extra)

    def flavor(self, **gpus: int) -> str:
        """Create a flavor of linked GPUs."""
        return self.linked(gpus[self.variant])


class LinkedMovesTest(MoveCase):

    def test_resize_takes_a_larger_partition(self) -> None:
        self.assertIn(self.modules(self.server), PAIRS)
        self.resize(self.linked(4))
        new = self.both(4)
        self.assertIn(self.modules(self.server, 'gpu2'), HALVES)
        self.decide('confirmResize')
        self.wait_facts(self.server, self.expected({'gpu2': new}))

    def test_reverted_migration_keeps_the_partition(self) -> None:
        before = self.modules(self.server)
        self.act('migrate')
        self.both(2)
        self.assertIn(self.modules(self.server, 'gpu2'), PAIRS)
        self.decide('revertResize')
        self.wait_facts(self.server, self.gpus_assigned)
        self.assertEqual(before, self.modules(self.server))

    def test_resize_to_what_is_no_partition_leaves_the_server_alone(
            self) -> None:
        self.resize(self.linked(3))
        self.wait_for(
            lambda: 'No valid host' in self.stdlog.logger.output,
            'no valid host')
        self.wait_status(self.server['id'], 'ACTIVE')
        self.assertIn('topology_linked', self.stdlog.logger.output)
        self.wait_facts(self.server, self.gpus_assigned)


class LinkedEvacuationTest(MoveCase, test_moves.EvacuateCase):

    def test_evacuated_server_gets_a_partition(self) -> None:
        self.evacuate('done')
        self.wait_status(self.server['id'], 'SHUTOFF', 'ACTIVE')
        new = self.hostdevs(self.server, 'gpu2')
        self.assertIn(self.modules(self.server, 'gpu2'), PAIRS)
        self.gpu1_comes_back()
        self.wait_facts(self.server, self.expected({'gpu2': new}))


class RankedTest(LinkedMixin, test_weigher.WeigherTest):
    """Two HGX servers with a fabric, ranked by the weigher."""

    machines: typing.ClassVar[dict[str, str]] = {
        'gpu1': 'hgx-h100-8', 'gpu2': 'hgx-h100-8'}

    def setUp(self) -> None:
        super().setUp()
        self.state_links()

    def test_host_is_chosen_where_the_claim_breaks_the_least(self) -> None:
        pairs = [self.boot(self.linked(2)) for _ in range(4)]
        [fragmented] = {server['OS-EXT-SRV-ATTR:host'] for server in pairs}
        half = self.boot(self.linked(4))['OS-EXT-SRV-ATTR:host']
        self.assertNotEqual(fragmented, half)
        gone = {halves(self.modules(server, fragmented)).pop(): server
                for server in pairs}
        self.delete(*gone.values())
        self.wait_states(fragmented, available=4, assigned=4)
        self.wait_inventory(8, 0, fragmented)
        # Each has four free GPUs, but the other one's are all linked.
        found = self.boot(self.linked(2))
        self.assertEqual(fragmented, found['OS-EXT-SRV-ATTR:host'])
        self.assertIn(self.modules(found, fragmented), PAIRS)
        self.assertEqual(half, self.boot(self.linked(4, 'any'))[
            'OS-EXT-SRV-ATTR:host'])
        self.assertEqual([], self.denials())
