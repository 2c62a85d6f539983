# SPDX-License-Identifier: Apache-2.0
"""Simulation of a cloud that places a trace of requests."""
