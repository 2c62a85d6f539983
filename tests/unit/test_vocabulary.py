# SPDX-License-Identifier: Apache-2.0
"""Tests that names of all kinds have no retired word.

The glossary (doc/source/glossary.rst) has the terms. Prose is for reviewers:
these tests check names alone. Arguments of RPC calls are identifiers of the
contract (gpgpu_plugin/rpc/conductor_contract.py).
"""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

from oslotest import base

from gpgpu_plugin.db import migration
from gpgpu_plugin.db import tables

TOP = pathlib.Path(__file__).parents[2]

# Parts of identifiers, however they are written: carved, carved_types,
# CarvedGPU.
RETIRED = frozenset({
    'alike', 'backed', 'backing', 'carve', 'carved', 'carves', 'carving',
    'creatable', 'damage', 'deliver', 'delivered', 'departing',
    'departs', 'each', 'gpgpu', 'holder', 'holding', 'holdings', 'learn',
    'look', 'novas', 'obstacle', 'owed', 'picks', 'reckon', 'reckoned',
    'seat', 'seats', 'side', 'sides', 'strays', 'tick', 'told', 'wishes'})

# Whole identifiers whose parts are ordinary words elsewhere.
RETIRED_NAMES = frozenset({
    'CARDS', 'Chosen', 'GroupDetail', 'GroupState', 'GroupView', 'HostView',
    'NovasOwn', 'Serials', 'Share', 'SharedCard', 'Sharing', 'Unit',
    'all_well', 'cards', 'held_on', 'mixed_placed', 'nothing_held', 'room',
    'same_size'})

# Names that are somebody else's, or the term itself.
ALLOWED = re.compile(
    # NVIDIA's attribute of sysfs, and what is read from it.
    r'\w*creatable_vgpu_types\w*|_?CREATABLE_VGPU_TYPES'
    # Who holds a lock of the database.
    r'|\w*lock_holder'
    # An option of "python -m bench simulate".
    r'|learn_mix'
    # An attribute of unittest.mock's mocks.
    r'|side_effect'
    # Our distribution, its configuration group, packages and base error.
    r'|gpgpu\w*|conf_gpgpu|_gpgpu\w*|GPGPUException|GPUPluginException'
    r'|GPGPU_\w+')

# Initialisms are upper case in class names; operators write these into
# configuration files.
SPELLED_AS_CONFIGURED = frozenset({
    'GpuFilter', 'GpuNUMATopologyFilter', 'GpuWeigher', 'GpuLibvirtDriver',
    'GpuLibvirtFakeDriver', 'GpuFakeDriver'})


def parts(name: str) -> list[str]:
    """Return the words of an identifier in lower case."""
    return [word.lower() for word in re.findall(
        r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+', name)]


def retired(name: str) -> list[str]:
    """Return the retired words in an identifier."""
    if name in RETIRED_NAMES:
        return [name]
    if ALLOWED.fullmatch(name):
        return []
    found = RETIRED.intersection(parts(name))
    # The name of a test is an English sentence: "each" is no variable there.
    return sorted(found - {'each'} if name.startswith('test_') else found)


def identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that a module gives, with their lines.

    Attributes that are only read are somebody else's to name.
    """
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(
                node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.rpartition('.')[2], node.lineno


def modules(*folders: str) -> Iterator[pathlib.Path]:
    """Yield the Python files below some folders of the repository."""
    for folder in folders:
        yield from sorted((TOP / folder).rglob('*.py'))


class PartsTest(base.BaseTestCase):
    """Tests of how identifiers are split and judged."""

    def test_words_of_an_identifier(self) -> None:
        self.assertEqual(['with', 'vgpu'], parts('with_vgpu'))
        self.assertEqual(['vgpu', 'mix', 'policy'], parts('VGPUMixPolicy'))

    def test_retired_word_is_found_in_any_spelling(self) -> None:
        for name in ('carved', '_carved_types', 'CarvedGPU', 'vgpu_seats',
                     'cards', 'each', 'test_old_side_lives'):
            self.assertNotEqual([], retired(name), name)

    def test_term_that_contains_a_retired_word_is_allowed(self) -> None:
        for name in ('creatable_vgpu_types', 'gpgpu_context', 'outside',
                     'reseated', 'side_effect',
                     'test_report_after_each_change'):
            self.assertEqual([], retired(name), name)


class VocabularyTest(base.BaseTestCase):
    """Tests of identifiers, columns and headings."""

    def test_identifiers_have_no_retired_word(self) -> None:
        found = [
            f'{path.relative_to(TOP)}:{line}: {name}: {", ".join(words)}'
            for path in modules(
                'gpgpu_plugin', 'nova', 'demo', 'bench', 'tests')
            for name, line in identifiers(ast.parse(path.read_text()))
            if (words := retired(name))]
        self.assertEqual([], found, f'{len(found)}')

    def test_modules_have_no_retired_word(self) -> None:
        self.assertEqual([], [
            str(path.relative_to(TOP))
            for path in modules('gpgpu_plugin', 'tests')
            if any(map(retired, path.relative_to(TOP).with_suffix('').parts))
            and path.parts[-1] != 'gpgpu.py'
            and retired(path.stem)])

    def test_columns_have_no_retired_word(self) -> None:
        self.assertEqual([], [
            f'{table.name}.{column.name}'
            for table in migration.METADATA.sorted_tables
            for column in table.columns
            if retired(table.name) or retired(column.name)])

    def test_headings_and_options_have_no_retired_word(self) -> None:
        # Headings are made of the names of fields, options of the same.
        found = [
            f'{path.relative_to(TOP)}:{node.lineno}: {node.value}'
            for path in modules('gpgpu_plugin/cmd')
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r'(--)?[A-Za-z]+([_ -][A-Za-z]+){0,3}',
                             node.value)
            and retired(node.value.strip('-').replace('-', '_'))]
        self.assertEqual([], found)

    def test_slot_is_the_chassis_slot_alone(self) -> None:
        self.assertNotIn('slot', tables.ASSIGNMENTS.columns)

    def test_initialisms_are_upper_case_in_class_names(self) -> None:
        self.assertEqual([], [
            f'{path.relative_to(TOP)}: {node.name}'
            for path in modules('gpgpu_plugin')
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ClassDef)
            and re.search(r'Gpu|Gpgpu|Pci(?!e)|Numa|Vgpu|Uuid', node.name)
            and node.name not in SPELLED_AS_CONFIGURED])
