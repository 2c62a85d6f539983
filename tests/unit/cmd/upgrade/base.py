# SPDX-License-Identifier: Apache-2.0
"""Assertions on the results of upgrade checks."""

from oslo_upgradecheck import upgradecheck
from oslotest import base


class ResultMixin:
    """Assertions; each returns the text of the result."""

    def _is(self, code, result):
        self.assertEqual(code, result.code, result.details)
        return result.details

    def success(self, result):
        return self._is(upgradecheck.Code.SUCCESS, result)

    def warning(self, result):
        return self._is(upgradecheck.Code.WARNING, result)

    def failure(self, result):
        return self._is(upgradecheck.Code.FAILURE, result)


class ResultTestCase(ResultMixin, base.BaseTestCase):
    """Base class of tests of checks that need no database."""
