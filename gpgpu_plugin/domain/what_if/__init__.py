# SPDX-License-Identifier: Apache-2.0
"""Plan of a drain: where instances would go, and in which order."""
