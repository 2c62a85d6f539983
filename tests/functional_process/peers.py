# SPDX-License-Identifier: Apache-2.0
"""Fake Glance and Neutron, as Nova calls them: one image, no port."""

from __future__ import annotations

import hashlib
import json
import typing
from collections.abc import Callable
from collections.abc import Iterable

# The firmware finds nothing to boot there, and waits.
DISK = bytes(1024 * 1024)
IMAGE = {
    'id': '11111111-2222-4333-8444-555555555555', 'name': 'tiny',
    'status': 'active', 'visibility': 'public', 'disk_format': 'raw',
    'container_format': 'bare', 'size': len(DISK), 'min_ram': 0,
    'min_disk': 0, 'owner': None, 'protected': False, 'tags': [],
    'checksum': hashlib.md5(DISK, usedforsecurity=False).hexdigest(),
    'created_at': '2026-01-01T00:00:00Z',
    'updated_at': '2026-01-01T00:00:00Z'}


def application(
        environ: dict[str, typing.Any],
        start_response: Callable[[str, list[tuple[str, str]]], object],
) -> Iterable[bytes]:
    """Answer anything; lists are empty."""
    path = environ['PATH_INFO'].rstrip('/')
    base = f'http://{environ["HTTP_HOST"]}'
    last = path.rpartition('/')[2].removesuffix('.json').replace('-', '_')
    body: dict[str, typing.Any] = {last: []}
    if not path:
        body = {'versions': [{
            'id': 'v2.0', 'status': 'CURRENT',
            'links': [{'rel': 'self', 'href': f'{base}/v2.0/'}]}]}
    elif path == f'/v2/images/{IMAGE["id"]}/file':
        start_response('200 OK', [
            ('Content-Type', 'application/octet-stream'),
            ('Content-Length', str(len(DISK)))])
        return [DISK]
    elif path.startswith('/v2/images/'):
        body = IMAGE
    elif path.startswith('/v2/schemas/'):
        body = {'name': last,
                'properties': {name: {} for name in IMAGE}}
    answer = json.dumps(body).encode()
    start_response('200 OK', [('Content-Type', 'application/json'),
                              ('Content-Length', str(len(answer)))])
    return [answer]
