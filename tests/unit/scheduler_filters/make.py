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
"""Builders of hosts as the conductor reports them to schedulers."""

from gpgpu_plugin.objects import scheduling

RC = 'CUSTOM_GPU_A'


def groups(node, free=0b1111, generation=1, available=(), alone=(), **kwargs):
    return scheduling.HostMasks(
        host=node,
        node_uuid=node,
        generation=generation,
        groups=(
            scheduling.GroupMasks(
                variant='A',
                provider_uuid=f'{node}-rp',
                types=(
                    scheduling.TypeMasks(
                        resource_class=RC, free=free, available=available
                    ),
                ),
                numa=(0b0011, 0b1100),
                numa_nodes=(0, 1),
                switches=(0b0001, 0b0010),
                alone=alone,
            ),
        ),
        **kwargs,
    )


class FakeAPI:
    """A conductor that gives prepared answers.

    :ivar asked: generations that it was asked for
    """

    def __init__(self, *changes):
        self.changes = list(changes)
        self.asked = []

    def changes_since(self, context, generation):
        self.asked.append(generation)
        change = self.changes.pop(0)
        if isinstance(change, Exception):
            raise change
        return change
