# SPDX-License-Identifier: Apache-2.0
"""Placement and Nova of a cloud, as commands read them.

``clouds.yaml`` says where they are. Answers are their JSON.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Callable
from collections.abc import Iterator

import openstack
from keystoneauth1 import adapter
from keystoneauth1 import exceptions as keystone_exceptions
from openstack import connection as sdk_connection
from openstack import exceptions as sdk_exceptions
from openstack.compute.v2 import _proxy as proxy

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base

if typing.TYPE_CHECKING:
    import requests


ERRORS = (sdk_exceptions.SDKException, keystone_exceptions.ClientException)
"""Errors of a cloud that does not answer, or refuses."""

JSON = typing.Any
"""An answer of a service; nothing but its reader knows its shape."""

PAGE_SIZE = 1000
"""Rows in one answer of Nova, which has at most as many."""

_PLACEMENT = {'OpenStack-API-Version': 'placement 1.39'}
_NOVA = {'OpenStack-API-Version': 'compute 2.86'}


class Cloud:
    """Placement, Nova and Glance of a cloud.

    Each method raises ERRORS if a service cannot be read.

    :param connect: connects to it, at the first question
    """

    def __init__(self, connect: Callable[
            [], sdk_connection.Connection] = openstack.connect) -> None:
        self._connect = connect

    @functools.cached_property
    def _connection(self) -> sdk_connection.Connection:
        return self._connect()

    def placement(self, path: str,
                  query: dict[str, str] | None = None) -> JSON:
        """Return what Placement answers to a GET request."""
        return _get(self._connection.placement, path, _PLACEMENT, query)

    def delete_from_placement(self, path: str) -> None:
        """Delete in Placement what may be gone already."""
        response = self._connection.placement.delete(
            path, headers=_PLACEMENT, raise_exc=False)
        if response.status_code != 404:
            sdk_exceptions.raise_from_response(response, _detail(response))

    def nova(self, path: str,
             query: dict[str, str] | None = None) -> JSON:
        """Return what Nova answers to a GET request."""
        return _get(self._connection.compute, path, _NOVA, query)

    def image(self, uuid: str) -> JSON:
        """Return the properties of an image, as Glance has them."""
        return _get(self._connection.image, f'/images/{uuid}', {})

    def services(self) -> list[JSON]:
        """Return all nova-compute services."""
        found: list[JSON] = self.nova(
            '/os-services', {'binary': 'nova-compute'})['services']
        return found

    def all_flavors(self) -> Iterator[JSON]:
        """Yield all flavors, page by page."""
        query = {'is_public': 'None', 'limit': str(PAGE_SIZE)}
        while True:
            page = self.nova('/flavors/detail', query)['flavors']
            yield from page
            if len(page) < PAGE_SIZE:
                return
            query['marker'] = page[-1]['id']

    def find_server(self, uuid: str) -> JSON:
        """Return an instance of any project; None: Nova does not have it."""
        response = self._connection.compute.get(
            f'/servers/{uuid}', headers=_NOVA, raise_exc=False)
        if response.status_code == 404:
            return None
        sdk_exceptions.raise_from_response(response)
        return response.json()['server']


def _detail(response: requests.Response) -> str | None:
    """Return why Placement refuses, which openstacksdk does not read."""
    try:
        return str(response.json()['errors'][0]['detail'])
    except (ValueError, LookupError, TypeError):
        return None


def _get(client: adapter.Adapter, path: str, headers: dict[str, str],
         query: dict[str, str] | None = None) -> JSON:
    response = client.get(
        path, params=query or {}, headers=headers, raise_exc=False)
    sdk_exceptions.raise_from_response(response)
    return response.json()


# -- Look-up of servers by name in Nova.


_MAX_NAMED = 8
"""Number of servers that a refusal names."""


def server_uuid(manage: base.Application, name: str) -> str:
    """Return the UUID of the only server of a name, of all projects.

    :raises NotFound: Nova has no server of this name
    :raises Conflict: Nova has several, or does not answer
    """
    cloud = manage.options.os_cloud
    try:
        connect = manage.connect or openstack.connect
        found = _servers(connect(cloud=cloud).compute, name)
    except (sdk_exceptions.SDKException,
            keystone_exceptions.ClientException) as exc:
        raise exception.Conflict(
            kind='server', name=name,
            reason=f'Nova cannot be asked for it (clouds.yaml, cloud '
                   f'{cloud or "of OS_CLOUD"}): '
                   f'{str(exc).partition(chr(10))[0]}; name the cloud of an '
                   f'administrator with --os-cloud before the command, or '
                   f'give the UUID of the server') from exc
    if not found:
        raise exception.NotFound(
            kind='server', name=f'{name} of Nova (of a deleted one, give the '
                                f'UUID, which "gpgpu-manage event list" has)')
    if len(found) > 1:
        named = ', '.join(f'{uuid} of project {project}'
                          for uuid, project in found[:_MAX_NAMED])
        raise exception.Conflict(
            kind='server', name=name,
            reason=f'{len(found)} servers have this name, give the UUID of '
                   f'one: {named}{", ..." if len(found) > _MAX_NAMED else ""}')
    return found[0][0]


def _servers(compute: proxy.Proxy, name: str) -> list[tuple[str, str]]:
    """Return UUID and project of all servers of a name.

    Nova takes the name as a regular expression of its database, which may
    ignore the case.
    """
    return sorted(
        (server.id, server.project_id) for server in compute.servers(
            details=True, all_projects=True, name=f'^{re.escape(name)}$')
        if server.name == name)
