# SPDX-License-Identifier: Apache-2.0
"""Tests of the tables of link partitions that operators state."""

import dataclasses
import json
import typing

from oslotest import base as test_base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import fabric
from tests.fixtures import group as group_fixture
from tests.unit.domain.allocation import base

NAMES = '01234567'
LATTICE = [sorted(part) for part in base.lattice(NAMES)]
FABRIC_MANAGER = {
    'maxNumPartitions': 3, 'numPartitions': 3, 'partitionInfo': [
        {'partitionId': 0, 'isActive': 0, 'numGpus': 2, 'gpuInfo': [
            {'physicalId': 1, 'uuid': ''}, {'physicalId': 3, 'uuid': ''}]},
        {'partitionId': 7, 'gpuModuleIds': [1]},
        {'partitionId': 8, 'gpuModuleIds': [3]}]}


def table(**fields: typing.Any) -> str:
    return json.dumps({'named_by': 'order', 'partitions': [[0, 1]], **fields})


def gpus(count: int) -> list[fabric.TableGPU]:
    """Return GPUs whose ids are in another order than their addresses."""
    return [fabric.TableGPU(id=f'g{9 - number}', slot=f'GPU{number + 1}',
                            address=f'{number:04x}:{number:02x}:00.0')
            for number in reversed(range(count))]


class ParseTest(test_base.BaseTestCase):

    def refused(self, text: str) -> str:
        return str(self.assertRaises(
            exception.Invalid, fabric.normalize_link_table, text))

    def test_lattice_by_the_order_of_addresses(self) -> None:
        found = fabric.parse_link_table(
            table(partitions=LATTICE)).links(gpus(8))
        self.assertEqual(15, len(found.partitions))
        self.assertTrue(found.fabric)
        self.assertEqual('', found.problem)
        self.assertEqual(
            {f'g{number}' for number in (9, 8, 7, 6)}, found.partitions[1])
        self.assertEqual('1', found.names[1])

    def test_one_form_is_kept_whatever_was_given(self) -> None:
        for given in ([['0', '1'], ['2']], {'0': [0, 1], '1': [2]}):
            text = fabric.normalize_link_table(table(partitions=given,
                                                     fabric=False))
            self.assertEqual(
                '{"named_by":"order","fabric":false,'
                '"partitions":{"0":["0","1"],"1":["2"]}}', text)
            self.assertEqual(text, fabric.normalize_link_table(text))

    def test_partitions_of_the_fabric_manager_name_modules(self) -> None:
        text = fabric.normalize_link_table(json.dumps({
            'partitionInfo': FABRIC_MANAGER['partitionInfo'],
            'named_by': 'address',
            'modules': {'1': '0000:1B:00.0', '3': '0000:43:00.0'}}))
        self.assertEqual(
            {'0': ['0000:1b:00.0', '0000:43:00.0'], '7': ['0000:1b:00.0'],
             '8': ['0000:43:00.0']}, json.loads(text)['partitions'])

    def test_refusal_names_the_field_and_what_is_expected(self) -> None:
        for text, words in (
                ('[', 'JSON'), ('[]', 'a JSON object'),
                (table(colour='red'), 'colour'),
                (table(fabric='yes'), 'true or false'),
                (table(named_by='uuid'), 'one of order, address, slot'),
                (json.dumps({'partitions': [[0]]}), 'one of order'),
                (json.dumps({'named_by': 'slot'}), '"partitionInfo"'),
                (table(partitions=[]), '1 to 256 partitions'),
                (table(partitions=7), 'by the name of the partition'),
                (table(partitions=[[]]), 'not empty'),
                (table(partitions=[[True]]), 'a list of names'),
                (table(partitions=[[0, 0]]), 'each GPU once'),
                (table(partitions=[[0, 1], [1, 0]]), 'partition 0'),
                (table(partitions=[[1, 2]]), '2 GPUs named 0 to 1'),
                (table(partitions=[['GPU1']]), 'add "modules"'),
                (table(named_by='address', partitions=[['1b:00.0']]),
                 '0000:3b:00.0'),
                (table(modules={'0': 0}), 'also module 1'),
                (table(modules={'0': 0, '1': 0}), 'another GPU for each'),
                (table(modules=[0, 1]), 'by module id'),
                (table(partitions=None, partitionInfo=[]), 'either'),
                (json.dumps({'named_by': 'slot', 'partitionInfo': [
                    {'partitionId': 0}]}), '"gpuModuleIds"'),
                (json.dumps({'named_by': 'slot', 'partitionInfo': [
                    {'partitionId': 0, 'gpuModuleIds': [1]}] * 2}),
                 'each partitionId once'),
                (json.dumps({'named_by': 'slot', 'partitionInfo': 1}),
                 '"gpuModuleIds"')):
            message = self.refused(text)
            self.assertIn(words, message)
            self.assertIn('link partitions', message.replace(
                'PCI address', 'link partitions'))


class LinksTest(test_base.BaseTestCase):

    def test_order_is_not_known_if_the_number_of_gpus_differs(self) -> None:
        for count in (0, 7, 9):
            found = fabric.parse_link_table(table(partitions=LATTICE)).links(
                gpus(count))
            self.assertEqual((), found.partitions)
            self.assertTrue(found.fabric)
            self.assertEqual(
                f'the table names 8 GPUs by their order, but the group has '
                f'{count}', found.problem)

    def test_partition_with_a_gpu_that_is_not_there_is_not_known(
            self) -> None:
        for named_by, names in (
                ('slot', ['GPU1', 'GPU2', 'GPU9']),
                ('address', ['0000:00:00.0', '0001:01:00.0',
                             '0009:09:00.0'])):
            found = fabric.parse_link_table(table(
                named_by=named_by, partitions={
                    'here': names[:2], 'gone': names[1:]})).links(gpus(3))
            self.assertEqual(('here',), found.names)
            self.assertEqual(({'g9', 'g8'},), found.partitions)
            self.assertIn(names[2], found.problem)
            self.assertIn(f'it has {names[0]}, {names[1]}', found.problem)

    def test_slot_of_two_gpus_names_none(self) -> None:
        twice = [fabric.TableGPU(id=name, address='0000:01:00.0', slot='S')
                 for name in 'ab']
        found = fabric.parse_link_table(table(
            named_by='slot', partitions=[['S']])).links(twice)
        self.assertEqual((), found.partitions)
        self.assertIn('or several', found.problem)


class GroupLinksTest(test_base.BaseTestCase):

    def test_own_table_of_a_group_comes_before_that_of_its_variant(
            self) -> None:
        two = [group_fixture.gpu(number) for number in range(2)]
        self.assertIsNone(group_fixture.t4s(*two).links)
        own = group_fixture.t4s(*two, own_links=table())
        self.assertEqual(({'/gpu0', '/gpu1'},), own.links.partitions)
        whole, vgpu = (own.offer(own.by_name[name])
                       for name in ('passthrough', 'T4-4Q'))
        self.assertEqual(own.links, whole.links)
        self.assertIsNone(vgpu.links)

    def test_hives_that_drivers_report_are_partitions(self) -> None:
        found = group_fixture.t4s(*(
            group_fixture.gpu(number, function={'hive': hive})
            for number, hive in enumerate('aabb')))
        self.assertEqual(
            ('host', False, ('hive a', 'hive b'),
             ({'/gpu0', '/gpu1'}, {'/gpu2', '/gpu3'})),
            (found.links_source, found.links.fabric, found.links.names,
             found.links.partitions))
        self.assertEqual('group', dataclasses.replace(
            found, own_links=table(partitions=[[0, 1], [2, 3]])).links_source)

    def test_hives_are_not_known_while_that_of_one_gpu_is_not(self) -> None:
        found = group_fixture.t4s(*(
            group_fixture.gpu(number, function={'hive': hive})
            for number, hive in enumerate(('a', 'a', None))))
        self.assertEqual(((), 'the xGMI hive of 1 of 3 GPUs is not known'),
                         (found.links.partitions, found.links.problem))

    def test_missing_gpu_keeps_its_place_and_its_partitions_are_not_free(
            self) -> None:
        found = group_fixture.t4s(
            group_fixture.gpu(0), group_fixture.gpu(1, present=False),
            group_fixture.gpu(2), own_links=table(
                partitions=[[0, 1], [0, 2], [0], [1], [2]]))
        offer = found.offer(found.by_name['passthrough'])
        self.assertEqual(
            ({'/gpu0', '/gpu2'}, {'/gpu0'}, {'/gpu2'}),
            offer.free_partitions)
