# SPDX-License-Identifier: Apache-2.0
"""Nova's host aggregates, and what Placement has of their hosts."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from collections.abc import Mapping

from keystoneauth1 import exceptions as keystone_exceptions
from openstack import connection as sdk_connection
from openstack import exceptions as sdk_exceptions

ERRORS = (sdk_exceptions.SDKException, keystone_exceptions.ClientException)
"""Errors of a cloud that does not answer, or refuses."""

_JSON = typing.Any
"""An answer of a service; nothing but its reader knows its shape."""

_WITH_UUID = '2.41'
"""Microversion of Nova from which aggregates have UUIDs."""

_WITH_GENERATION = '1.19'
"""Microversion of Placement from which a provider's aggregates are changed
only by those who know its generation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aggregate:
    """A host aggregate of Nova.

    :ivar uuid: by which Placement knows it
    :ivar hosts: names of its nova-compute services
    """

    id: int
    uuid: str
    metadata: Mapping[str, str]
    hosts: frozenset[str]


class Cloud:
    """Nova and Placement of a cloud.

    Each method raises ERRORS if a service does not do what it is asked for.
    """

    def __init__(self, connection: sdk_connection.Connection) -> None:
        self._connection = connection

    def find(self, name: str) -> Aggregate | None:
        """Return the aggregate of a name; None: there is none."""
        found = _json(self._connection.compute.get, '/os-aggregates',
                      microversion=_WITH_UUID)
        for aggregate in found['aggregates']:
            if aggregate['name'] == name:
                return _aggregate(aggregate)
        return None

    def create(self, name: str) -> Aggregate:
        """Create an aggregate of no availability zone."""
        return _aggregate(_json(
            self._connection.compute.post, '/os-aggregates',
            microversion=_WITH_UUID,
            json={'aggregate': {'name': name}})['aggregate'])

    def set_metadata(self, aggregate: Aggregate,
                     metadata: Mapping[str, str]) -> Aggregate:
        """Add metadata to an aggregate, and return it as it is then."""
        return _aggregate(self._act(
            aggregate, 'set_metadata', metadata=metadata)['aggregate'])

    def add_host(self, aggregate: Aggregate, host: str) -> None:
        """Add a host to an aggregate."""
        self._act(aggregate, 'add_host', host=host)

    def remove_host(self, aggregate: Aggregate, host: str) -> None:
        """Remove a host from an aggregate."""
        self._act(aggregate, 'remove_host', host=host)

    def _act(self, aggregate: Aggregate, action: str,
             **values: object) -> _JSON:
        return _json(
            self._connection.compute.post,
            f'/os-aggregates/{aggregate.id}/action',
            microversion=_WITH_UUID, json={action: values})

    def placed(self, aggregate: Aggregate) -> frozenset[str]:
        """Return the UUIDs of the compute nodes that Placement has in it.

        Nova tells Placement of each move, and only logs if that fails.
        """
        found = _json(
            self._connection.placement.get,
            f'/resource_providers?member_of={aggregate.uuid}',
            microversion=_WITH_GENERATION)
        return frozenset(provider['uuid']
                         for provider in found['resource_providers'])

    def place(self, aggregate: Aggregate, node_uuid: str) -> None:
        """Have Placement know that a compute node is in an aggregate.

        "nova-manage placement sync_aggregates" does the same.
        """
        path = f'/resource_providers/{node_uuid}/aggregates'
        placement_api = self._connection.placement
        before = _json(placement_api.get, path,
                       microversion=_WITH_GENERATION)
        _json(placement_api.put, path, microversion=_WITH_GENERATION, json={
            **before,
            'aggregates': sorted({*before['aggregates'], aggregate.uuid})})


def _aggregate(answer: Mapping[str, _JSON]) -> Aggregate:
    # Nova leaves both out of its answer when it has created one.
    return Aggregate(id=answer['id'], uuid=answer['uuid'],
                     metadata=dict(answer.get('metadata', {})),
                     hosts=frozenset(answer.get('hosts', ())))


def _json(send: Callable[..., _JSON], path: str,
          **kwargs: object) -> _JSON:
    response = send(path, raise_exc=False, **kwargs)
    sdk_exceptions.raise_from_response(response)
    return response.json()
