# SPDX-License-Identifier: Apache-2.0
"""Tests of one part each: nothing but Python."""

import hypothesis

from tests.fixtures import memory

memory.use()
memory.collect_rarely()
# How fast examples are made says how busy the machine is, not whether we are
# right.
hypothesis.settings.register_profile(
    'busy', deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile('busy')
