# SPDX-License-Identifier: Apache-2.0
"""Tests of table cells, which differ for people and programs."""

import dataclasses
import enum
import types

from oslotest import base

from gpgpu_plugin.cmd import listing


class State(enum.StrEnum):
    DIRTY = 'dirty'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Value:
    node_uuid: str
    numa_nodes: tuple[int, ...] = ()


class CellTest(base.BaseTestCase):

    def test_people_read_a_dash_for_an_absent_value(self):
        for value in (None, (), {}):
            self.assertEqual('-', listing.Cell(value).human_readable())

    def test_people_read_values_without_brackets(self):
        for value, expected in (
                (0, '0'), ('', ''), (True, 'yes'), (False, 'no'),
                ([1, 2], '1, 2'), (('a',), 'a'), (State.DIRTY, 'dirty'),
                ({'available': 8, 'dirty': 1}, 'available 8, dirty 1')):
            self.assertEqual(
                expected, listing.Cell(value).human_readable(), value)

    def test_programs_read_plain_values(self):
        for value, expected in (
                (None, None), (True, True), ((1, 2), [1, 2]),
                (State.DIRTY, 'dirty'), ({'a': (1,)}, {'a': [1]})):
            plain = listing.Cell(value).machine_readable()
            self.assertEqual(expected, plain)
            self.assertIs(type(expected), type(plain))


class FormulaTest(base.BaseTestCase):

    def test_texts_that_begin_a_formula_are_quoted(self):
        for text in ('=1+1', '+1', '-1', '@SUM(A1)', '\t=1', '\r=1'):
            self.assertEqual(f"'{text}", listing.without_formula(text))
            self.assertEqual(f"'{text}", listing.without_formula(
                listing.Cell(text)).machine_readable())

    def test_other_values_stay(self):
        for value in ('a=b', '', -1, None, ('-1',)):
            self.assertIs(value, listing.without_formula(value))


class TitleTest(base.BaseTestCase):

    def test_initialism_is_upper_case(self):
        for name, title in (
                ('node_uuid', 'Node UUID'), ('vgpu_type', 'vGPU Type'),
                ('max_vgpu_per_pgpu', 'Max vGPU Per pGPU'),
                ('video_ram', 'Video RAM'), ('host', 'Host')):
            self.assertEqual(title, listing.title(name))


class RowsTest(base.BaseTestCase):

    def test_rows_have_the_named_fields_in_their_order(self):
        headings, rows = listing.rows(
            [types.SimpleNamespace(a=1, b=2, c=3)], ('c', 'a'))
        self.assertEqual(['C', 'A'], headings)
        self.assertEqual([['3', '1']], [
            [cell.human_readable() for cell in row] for row in rows])

    def test_fields_are_those_of_the_dataclass(self):
        headings, cells = listing.fields(Value(node_uuid='u'))
        self.assertEqual(['Node UUID', 'NUMA Nodes'], headings)
        self.assertEqual(['u', '-'], [
            cell.human_readable() for cell in cells])
