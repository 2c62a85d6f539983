# SPDX-License-Identifier: Apache-2.0
"""Backend and resource tracker of a third party.

No module of the plugin imports them.
"""
