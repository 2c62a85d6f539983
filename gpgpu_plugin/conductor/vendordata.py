# SPDX-License-Identifier: Apache-2.0
"""Description of the GPUs of a server for its tenant (Nova's vendordata).

Nova asks while it builds a config drive, and with each request of a guest to
the metadata service. A slow answer delays both, so an answer that takes long
is an error, after which Nova goes on without.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import uuid
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from concurrent import futures

from oslo_config import cfg
from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import http_server
from gpgpu_plugin.conductor import threads
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import usage as usage_db
from gpgpu_plugin.domain import naming
from gpgpu_plugin.objects import claim as claim_obj

LOG = logging.getLogger(__name__)

OPTION = '[gpgpu_conductor] vendordata_bind'

PATIENCE = 2.0
"""Seconds for which a request waits for the database. Nova waits for 5."""

CONNECTIONS = 256
"""Connections at once; more are closed without an answer. Many servers may
boot at the same time, and few of their requests are read at once."""

LARGEST = 1 << 20
"""Bytes of a request. Nova sends the user data, which has up to 64 KiB."""

_Kind = tuple[tuple[str, str | None], ...]

Ask = Callable[[str, str], object]
"""Returns the answer for the UUID and the project of an instance."""


class Unanswered(Exception):
    """The database did not answer in time."""


def gpus(db: api.Database, instance_uuid: str,
         project_id: str) -> list[dict[str, object]]:
    """Return the GPUs that the guest of an instance has, in groups.

    :param project_id: of the instance; those of another one are left out
    """
    with db.reader() as session:
        rows = _of_guest(session, [
            active for active in assignment_db.of_instance(
                session, instance_uuid)
            if active.row.project_id == project_id])
        kinds: dict[_Kind, list[str | None]] = {}
        for active in rows:
            kinds.setdefault(_kind(session, active), []).append(
                active.row.guest_addresses)
    return [{**dict(kind), 'count': len(places), **_addresses(places)}
            for kind, places in sorted(kinds.items(), key=str)]


def _addresses(places: Collection[str | None]) -> dict[str, object]:
    """Return the addresses in the guest; nothing if one is unknown.

    :param places: Assignment.guest_addresses of each GPU
    """
    if not all(places):
        return {}
    return {'addresses': sorted(
        json.loads(place) for place in places if place)}


def _of_guest(session: orm.Session, found: Iterable[assignment_db.Active],
              ) -> list[assignment_db.Active]:
    """Return the assignments of an instance's guest, which are of one claim.

    An instance has two sets of devices while it moves. Those of a resize's
    destination are the guest's from the moment they are activated, right
    before the guest is created there; those of a build or evacuation from the
    claim on. The newest of such claims counts. But nothing is evacuated from
    a host that calls: until the claim is activated, a usage on such a host
    goes on.
    """
    rows = [active for active in found if active.row.lease_expires_at is None
            or active.row.role == claim_obj.ClaimRole.INSTANCE]
    last = rows[-1].row if rows else None
    if last is not None and last.lease_expires_at is not None:
        used = usage_db.going_on(
            session, [row.uuid for row, *_ in rows], last.claimed_at)
        rows = [active for active in rows if active.row.uuid in used] or rows
    return [active for active in rows if _claim(active) == _claim(rows[-1])]


def _claim(active: assignment_db.Active) -> tuple[int, str]:
    return active.row.host_id, active.row.migration_uuid


def _kind(session: orm.Session, active: assignment_db.Active) -> _Kind:
    row = active.row
    gpus = device_db.of_ids(session, {row.device.parent_id or row.device.id})
    function = device_db.pci_function(*gpus.values())
    return (
        ('variant', active.variant),
        ('vendor_id', function.vendor), ('device_id', function.device),
        ('vgpu_type', None if row.vgpu_type == naming.PASSTHROUGH
         else row.vgpu_type))


class _Handler(http_server.Handler):
    """Handler of one request of Nova; a subclass has user and answers.

    :cvar authorization: value of the header that Nova must send
    :cvar ask: returns the answer
    """

    authorization: bytes
    ask: Ask

    def do_POST(self) -> None:
        """Answer with the GPUs of the instance that the request names."""
        if not self._is_authorized():
            self.send_response(401)
            self.send_header('WWW-Authenticate', 'Basic realm="gpgpu"')
            self.end_headers()
            return
        instance = self._instance()
        if instance is None:
            self.send_error(400)
            return
        try:
            answer = type(self).ask(*instance)
        except Unanswered:
            self.send_error(503)
            return
        self.send(json.dumps({'gpus': answer}).encode(), 'application/json')

    def _is_authorized(self) -> bool:
        scheme, _, credentials = self.headers.get(
            'Authorization', '').partition(' ')
        try:
            given = base64.b64decode(credentials, validate=True)
        except (binascii.Error, ValueError):
            return False
        return scheme.lower() == 'basic' and hmac.compare_digest(
            given, self.authorization)

    def _instance(self) -> tuple[str, str] | None:
        """Return UUID and project of the instance; None: it is malformed."""
        try:
            length = int(self.headers.get('Content-Length', ''))
            if not 0 < length <= LARGEST:
                return None
            asked = json.loads(self.rfile.read(length))
            return (str(uuid.UUID(asked['instance-id'])),
                    str(asked['project-id']))
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


class _Answers:
    """Answers from the database, in threads of its own."""

    def __init__(self, db: api.Database) -> None:
        self._db = db
        self._executor = futures.ThreadPoolExecutor(
            threads.VENDORDATA_THREADS,
            thread_name_prefix='gpgpu-vendordata')

    def ask(self, instance_uuid: str, project_id: str) -> object:
        """Return the GPUs of an instance.

        :raises Unanswered: the database does not answer in time
        """
        reading = self._executor.submit(
            gpus, self._db, instance_uuid, project_id)
        try:
            return reading.result(PATIENCE)
        except futures.TimeoutError:
            reading.cancel()
            raise Unanswered from None
        except Exception as exc:
            LOG.warning('Cannot tell Nova the GPUs of instance %(uuid)s: '
                        '%(error)s', {'uuid': instance_uuid, 'error':
                                      str(exc).partition('\n')[0]})
            raise Unanswered from exc

    def stop(self) -> None:
        """Wait until the readings under way have ended."""
        self._executor.shutdown(cancel_futures=True)


class Vendordata:
    """The endpoint, if ``[gpgpu_conductor] vendordata_bind`` is set.

    :raises ConfigInvalid: nothing can listen there, or the password is missing
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._answers: _Answers | None = None
        self._listener: http_server.HTTPListener | None = None
        value = conf.gpgpu_conductor.vendordata_bind
        self._address = http_server.parse(value, OPTION) if value else None
        if self._address is None:
            return
        http_server.check_local(self._address, OPTION)
        password = conf.gpgpu_conductor.vendordata_password
        if not password:
            raise exception.ConfigInvalid(
                option='[gpgpu_conductor] vendordata_password',
                reason='vendordata_bind needs it. Set the same in '
                       '[vendordata_dynamic_auth] of Nova, with auth_type = '
                       'http_basic and username = nova')
        self._authorization = f'nova:{password}'.encode()

    def start(self, db: api.Database) -> http_server.Address | None:
        """Answer from a database; return the address, None: it is off.

        :raises ConfigInvalid: another process listens on the port
        """
        if self._address is None:
            return None
        self._answers = _Answers(db)
        handler = type('Handler', (_Handler,), {
            'authorization': self._authorization,
            'ask': staticmethod(self._answers.ask)})
        self._listener = http_server.HTTPListener(
            self._address, OPTION, handler, CONNECTIONS)
        address = self._listener.start()
        LOG.info('Dynamic vendordata for Nova is served at http://%s/',
                 address)
        return address

    def stop(self) -> None:
        """Answer no more; all its threads have ended then."""
        if self._listener is not None:
            self._listener.stop()
        if self._answers is not None:
            self._answers.stop()
