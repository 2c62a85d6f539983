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
