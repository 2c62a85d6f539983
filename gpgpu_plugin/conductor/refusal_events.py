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
"""Events of refusals, each in a transaction of its own.

The transaction of a claim that is denied is rolled back, and that of a
repeated refusal never begins. A refusal that is repeated within a minute is
counted: the first one is stored at once, and ``run_once`` adds the number of
the others to its event. Only such numbers are lost if the conductor dies, or
the database does not answer.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.db import api
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import scheduling

LOG = logging.getLogger(__name__)

INTERVAL = 10
"""Seconds between two updates of the counts."""

PERIOD = 60.0
"""Seconds in which equal refusals are one event."""

PAUSE = 30.0
"""Seconds after a failure in which decisions of schedulers are not stored."""

_LIMIT = 10000

_Key = tuple[str, str, str]


@dataclasses.dataclass(kw_only=True)
class _Stored:
    """An event of a refusal.

    :ivar at: when, by the clock of the process
    :ivar id: of the row; None: it is not stored yet
    :ivar more: equal refusals since its count was written
    """

    at: float
    id: int | None = None
    more: int = 0


class RefusalEvents:
    """The refusals that this conductor stored in the last minute.

    :param db: for the counts
    :param clock: seconds of a clock that never goes back
    """

    def __init__(self, db: api.Database,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._clock = clock
        self._lock = threading.Lock()
        self._stored: collections.OrderedDict[_Key, _Stored] = (
            collections.OrderedDict())
        self._repeated: list[_Stored] = []
        self._failed_at = float('-inf')

    def denied(self, db: api.Database, request: claim_obj.ClaimRequest,
               denied: exception.ClaimDenied) -> None:
        """Record that a claim was denied; never raises.

        :param db: with the author of the claim
        """
        key = request.instance_uuid, request.host, denied.reason
        stored = self._first(key)
        if stored is None:
            return
        with _unrecorded('that a claim was denied'):
            stored.id = db.write(lambda session: event_db.add_refusal(
                session, request, denied.reason,
                str(denied.kwargs.get('detail'))))
        if stored.id is None:
            self._forget(key, stored)

    def _first(self, key: _Key) -> _Stored | None:
        """Return what to store; None: it was, and this one is counted."""
        with self._lock:
            found = self._stored.get(key)
            if found is not None and self._clock() - found.at < PERIOD:
                found.more += 1
                if found.more == 1:
                    self._repeated.append(found)
                return None
            self._stored[key] = _Stored(at=self._clock())
            self._stored.move_to_end(key)
            if len(self._stored) > _LIMIT:
                self._stored.popitem(last=False)
            return self._stored[key]

    def _forget(self, key: _Key, stored: _Stored) -> None:
        """Have the next refusal stored, as this one could not be."""
        with self._lock:
            if self._stored.get(key) is stored:
                del self._stored[key]
            self._repeated = [
                other for other in self._repeated if other is not stored]

    def filtered(self, db: api.Database,
                 refusals: Sequence[scheduling.FilterRefusal]) -> bool:
        """Record decisions of schedulers; never raises.

        While the database is busy or away it is not tried with each call,
        since schedulers wait for the answer.

        :param db: with the scheduler as author
        :returns: whether the scheduler need not send them again
        """
        if not refusals:
            return True
        if self._clock() - self._failed_at < PAUSE:
            return False
        try:
            db.write(lambda session: event_db.add_filtered(
                session, refusals))
        except exception.ConductorUnavailable as exc:
            self._failed_at = self._clock()
            LOG.warning('Cannot record what filters refused: %s', exc)
            return False
        except Exception:
            # The database would refuse them again, and all that follow.
            LOG.exception('Cannot record what filters refused; dropping it')
        return True

    def run_once(self) -> None:
        """Write how often refusals were repeated; never raises."""
        counts = self._counts()
        if counts:
            with _unrecorded('how often claims were denied'):
                self._db.write(lambda session: event_db.count_more(
                    session, counts))

    def _counts(self) -> dict[int, int]:
        """Return what to add to the counts of events, by their ids."""
        with self._lock:
            counts: dict[int, int] = {}
            stored, self._repeated = self._repeated, []
            for repeated in stored:
                if repeated.id is None:
                    # It is being stored.
                    self._repeated.append(repeated)
                    continue
                counts[repeated.id] = repeated.more
                repeated.more = 0
            return counts


@contextlib.contextmanager
def _unrecorded(what: str) -> Iterator[None]:
    """Log an error, since the answer to the caller matters more."""
    try:
        yield
    except exception.ConductorUnavailable as exc:
        LOG.warning('Cannot record %s: %s', what, exc)
    except Exception:
        LOG.exception('Cannot record %s', what)
