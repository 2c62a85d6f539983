# SPDX-License-Identifier: Apache-2.0
"""Values that are sent by RPC, and their codec."""
