# SPDX-License-Identifier: Apache-2.0
"""The plugin's programs."""

import warnings

from oslo_service import backend

# The first import of oslo.messaging calls this hook, and would otherwise
# import eventlet. Nova's processes make their own choice.
backend.register_backend_default_hook(lambda: backend.BackendType.THREADING)
# futurist imports eventlet wherever it is installed, as it is beside Nova, and
# all commands would print its warning.
warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
