# SPDX-License-Identifier: Apache-2.0
"""Tests of the kinds of events."""

import ast
import pathlib

from oslotest import base

from gpgpu_plugin.domain import event

PACKAGE = pathlib.Path(event.__file__).parents[1]


class KindsTest(base.BaseTestCase):

    def test_kinds_are_in_order_and_fit_their_column(self):
        self.assertEqual(sorted(set(event.KINDS)), list(event.KINDS))
        self.assertLessEqual(max(map(len, event.KINDS)), 32)

    def test_every_kind_is_written_somewhere_else(self):
        texts = {node.value for path in PACKAGE.rglob('*.py')
                 if path != pathlib.Path(event.__file__)
                 for node in ast.walk(ast.parse(path.read_text()))
                 if isinstance(node, ast.Constant)}
        self.assertEqual(set(), set(event.KINDS) - texts)
