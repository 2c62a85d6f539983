#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""The plugin's programs."""

import warnings

from oslo_service import backend

# The first import of oslo.messaging calls this hook, and would otherwise
# import eventlet. Nova's processes make their own choice.
backend.register_backend_default_hook(lambda: backend.BackendType.THREADING)
# futurist imports eventlet wherever it is installed, as it is beside Nova, and
# all commands would print its warning.
warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
