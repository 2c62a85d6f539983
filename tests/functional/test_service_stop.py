# SPDX-License-Identifier: Apache-2.0
"""Services of a test's cloud that stop."""

from __future__ import annotations

import time
import unittest

from tests.fixtures import cloud
from tests.fixtures import nova_release

thread_pool_factory = nova_release.thread_pool_factory


@unittest.skipUnless(thread_pool_factory, 'Nova 33 ends no pools')
class PoolsTest(unittest.TestCase):
    """Pools of the test process."""

    def setUp(self) -> None:
        thread_pool_factory.reset_all_executors()
        self.addCleanup(thread_pool_factory.reset_all_executors)

    def test_pools_outlive_a_service_that_stops_after_its_test(self) -> None:
        # As nova.compute.manager.ComputeManager.cleanup_host does.
        thread_pool_factory.shutdown_all_executors()
        pool = thread_pool_factory.get_executor(
            thread_pool_factory.ExecutorType.DEFAULT)
        self.assertEqual('ran', pool.submit(lambda: 'ran').result())


class StopTest(cloud.GpuCloud):
    """nova-compute is stopped."""

    def test_driver_has_ended_when_nova_compute_has(self) -> None:
        driver = self.driver()
        cleanup_host = driver.cleanup_host
        ended = []

        def end_slowly(host: str) -> None:
            time.sleep(0.2)
            cleanup_host(host)
            ended.append(host)
        driver.cleanup_host = end_slowly
        self.computes['gpu1'].stop()
        self.assertEqual(['gpu1'], ended)
