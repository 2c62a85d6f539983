# SPDX-License-Identifier: Apache-2.0
"""Which host, and which GPUs of it, an instance should get.

Pure rules on values for the weigher, the claim and the simulator.
"""
