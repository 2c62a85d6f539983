# SPDX-License-Identifier: Apache-2.0
"""Tests of results and how they are joined."""

from gpgpu_plugin.cmd import upgrade
from tests.unit.cmd.upgrade import base


class JoinTest(base.ResultTestCase):

    def test_no_finding_is_a_success(self):
        self.assertEqual('fine', self.success(upgrade.join([], 'fine')))

    def test_worst_finding_is_the_result_and_comes_first(self):
        self.assertEqual('bad. odd. strange', self.failure(upgrade.join([
            upgrade.warning('odd'), upgrade.failure('bad'),
            upgrade.warning('strange')], 'fine')))


class NamesTest(base.ResultTestCase):

    def test_names_of_a_large_cloud_are_counted(self):
        self.assertEqual('a, b', upgrade.names(['a', 'b']))
        hosts = [f'h{number}' for number in range(10)]
        self.assertEqual('h0, h1, h2, h3, h4, h5, h6, h7',
                         upgrade.names(hosts[:8]))
        self.assertEqual('h0, h1, h2, h3, h4, h5, h6, h7 and 2 more',
                         upgrade.names(hosts))
