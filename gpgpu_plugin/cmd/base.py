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
"""What all commands share; it imports nothing that takes time."""

from __future__ import annotations

import typing

from gpgpu_plugin.cmd import errors

CONFIG_FILE = '/etc/gpgpu/gpgpu.conf'
NOVA_CONFIG_FILE = '/etc/nova/nova.conf'


class Command:
    """Mixed into a cliff command: its app is cmd.manage.GpgpuManage.

    The name cannot be annotated with that class, which loads the commands.
    """

    app: typing.Any

    def note(self, text: str) -> None:
        """Say something that is not part of the answer."""
        self.app.stderr.write(f'{self.app.NAME}: {text}\n')

    def explain(self, exc: Exception) -> str:
        """Return an error of this command as one line for the operator.

        A command overrides it that imports a library with errors of its own.
        """
        return errors.message(exc)
