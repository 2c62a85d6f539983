# SPDX-License-Identifier: Apache-2.0
"""Maps of the GPUs of a cloud, drawn from values."""
