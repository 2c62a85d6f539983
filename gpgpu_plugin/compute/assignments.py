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
"""What nova-compute must remember of its devices when it is restarted.

One small JSON file a host, replaced as a whole: who holds what, as last
heard, so that guests can be destroyed and made anew while no conductor
answers; and the releases that are still to be delivered.
"""

from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Iterable

from oslo_log import log as logging

from gpgpu_plugin import durable
from gpgpu_plugin import exception
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import codec

LOG = logging.getLogger(__name__)

_Held = dict[str, tuple[claim.Assignment, ...]]


class HostAssignments:
    """Thread-safe; every change is on disk when the method returns."""

    def __init__(self, path: str) -> None:
        self._path = pathlib.Path(path)
        self._lock = threading.Lock()
        self._held: _Held = {}
        self._pending: list[str] = []
        self._load()

    def _load(self) -> None:
        try:
            data = json.loads(self._path.read_text())
            self._held = codec.from_primitive(_Held, data['held'])
            self._pending = list(data['pending'])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError,
                exception.Invalid):
            # The file is a help for the time without a conductor; who holds
            # what is in the database.
            LOG.exception('%s cannot be read: releases that were not '
                          'delivered are found by the next comparison with '
                          'the instances', self._path)

    def _save(self) -> None:
        durable.replace(self._path, json.dumps({
            'held': codec.to_primitive(self._held),
            'pending': self._pending}))

    def replace_held(self, held: _Held) -> None:
        """Take over what the conductor says of the whole host."""
        with self._lock:
            if held != self._held:
                self._held = held
                self._save()

    def hold(self, instance_uuid: str,
             assignments: Iterable[claim.Assignment]) -> None:
        """Remember that an instance holds assignments."""
        with self._lock:
            held = {each.uuid: each for each in (
                *self._held.get(instance_uuid, ()), *assignments)}
            self._held[instance_uuid] = tuple(held.values())
            self._save()

    def held(self, instance_uuid: str) -> tuple[claim.Assignment, ...]:
        """Assignments of an instance on this host, as last heard."""
        with self._lock:
            return self._held.get(instance_uuid, ())

    def uuids(self, instance_uuid: str) -> set[str]:
        """UUIDs of what an instance holds, of both sides of a migration;
        those of mdevs are the mdevs' own."""
        return {each.uuid for each in self.held(instance_uuid)}

    def all(self) -> list[claim.Assignment]:
        """What all instances hold on this host, as last heard."""
        with self._lock:
            return [each for held in self._held.values() for each in held]

    def drop(self, instance_uuid: str, assignments: Iterable[str]) -> None:
        """Forget that an instance holds assignments."""
        gone = set(assignments)
        with self._lock:
            left = tuple(each for each in self._held.pop(instance_uuid, ())
                         if each.uuid not in gone)
            if left:
                self._held[instance_uuid] = left
            self._save()

    def postpone(self, assignments: Iterable[str]) -> None:
        """Remember releases that could not be delivered."""
        with self._lock:
            self._pending += [each for each in assignments
                              if each not in self._pending]
            self._save()

    def pending(self) -> list[str]:
        """Releases to be delivered."""
        with self._lock:
            return list(self._pending)

    def delivered(self, assignments: Iterable[str]) -> None:
        """Forget releases that were delivered."""
        with self._lock:
            gone = set(assignments)
            self._pending = [each for each in self._pending
                             if each not in gone]
            self._save()
