# SPDX-License-Identifier: Apache-2.0
"""Why a request fits on a host or not, and what would make it fit."""
