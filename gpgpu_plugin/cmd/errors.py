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
"""What an error says to the operator, without any traceback."""

from __future__ import annotations

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import exception


def message(exc: Exception) -> str:
    """The error's own words.

    ``str`` of an error that came by RPC has the remote traceback appended;
    its first argument is the message alone.
    """
    if isinstance(exc, exception.GpgpuException):
        return str(exc.args[0])
    if isinstance(exc, oslo_messaging.RemoteError):
        return (f'gpgpu-conductor failed, its log tells where: '
                f'{exc.exc_type}: {_first_line(exc.value)}')
    if isinstance(exc, (cfg.Error, oslo_messaging.MessagingException)):
        return _first_line(exc)
    return f'{type(exc).__name__}: {_first_line(exc)}'


def _first_line(value: object) -> str:
    return str(value).strip().partition('\n')[0]
