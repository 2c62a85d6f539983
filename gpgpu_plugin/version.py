# SPDX-License-Identifier: Apache-2.0
"""The installed version of the plugin."""


VERSION = '0.1.0'
