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
"""Services of a test's cloud that stop."""

from __future__ import annotations

import time
import unittest

from nova import thread_pool_factory

from tests.fixtures import cloud


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
