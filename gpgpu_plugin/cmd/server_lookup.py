# SPDX-License-Identifier: Apache-2.0
"""Look-up of servers by name in Nova."""

from __future__ import annotations

import re

import openstack
from keystoneauth1 import exceptions as keystone_exceptions
from openstack import exceptions as sdk_exceptions
from openstack.compute.v2 import _proxy as proxy

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base

_NAMED = 8
"""Number of servers that a refusal names."""


def uuid_of(manage: base.Application, name: str) -> str:
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
                          for uuid, project in found[:_NAMED])
        raise exception.Conflict(
            kind='server', name=name,
            reason=f'{len(found)} servers have this name, give the UUID of '
                   f'one: {named}{", ..." if len(found) > _NAMED else ""}')
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
