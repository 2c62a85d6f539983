# SPDX-License-Identifier: Apache-2.0
"""Backend of a third party, which no module of the plugin imports."""
