# SPDX-License-Identifier: Apache-2.0
"""The benchmark boots, with one host."""

from __future__ import annotations

from oslotest import base

from bench import boots


class BootsTest(base.BaseTestCase):
    """Four servers of two GPUs on a host of eight."""

    def active(self, cloud: str) -> list[int]:
        """Return how many became ACTIVE one by one, and at once."""
        figures = boots.boot(cloud, 1)
        self.assertTrue(all(
            found['servers'] == 4 and found['cpu'] > 0
            for found in figures.values()))
        return [figures[mode]['active'] for mode in boots.MODES]

    def test_all_fit_with_the_plugin(self) -> None:
        self.assertEqual([4, 4], self.active('plugin'))

    def test_all_fit_without_the_plugin_one_by_one(self) -> None:
        # At once, Nova's own PCI passthrough may refuse some of them.
        self.assertEqual(4, self.active('tuned')[0])
