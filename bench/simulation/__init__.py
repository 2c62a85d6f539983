# SPDX-License-Identifier: Apache-2.0
"""Pools of GPUs in which guests arrive and leave, by several rules."""
