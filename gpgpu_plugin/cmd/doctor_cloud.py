# SPDX-License-Identifier: Apache-2.0
"""Collectors of facts from Placement and Nova, for ``gpgpu-manage doctor``.

A cloud that cannot be read is an outcome, not an error: the rest is compared.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable

from gpgpu_plugin.cmd import cloud
from gpgpu_plugin.doctor import view
from gpgpu_plugin.domain import naming

_OURS = f'{naming.TRAIT_GPU},{naming.TRAIT_OWNER}'
_RESOURCES = 'resources'


class Cloud(cloud.Cloud):
    """Placement and Nova of a cloud."""

    # -- Placement ----------------------------------------------------------

    def providers(self, wanted: Iterable[str], node: str | None,
                  ) -> tuple[dict[str, view.Provider], list[view.Provider]]:
        """Return providers, and all with the plugin's traits.

        Two lists, then three questions for each provider.

        :param wanted: UUIDs of providers of groups
        :param node: UUID of a compute node, to whose providers the list is
            limited; None: all
        :raises cloud.ERRORS: Placement cannot be read
        """
        tree = {} if node is None else {'in_tree': node}
        known = self._listed(tree)
        found = {uuid: self._read(known[uuid])
                 for uuid in wanted if uuid in known}
        return found, [
            found.get(uuid) or dataclasses.replace(
                provider, allocations=self._allocations(uuid))
            for uuid, provider in self._listed(
                {**tree, 'required': _OURS}).items()]

    def delete_provider(self, uuid: str) -> None:
        """Delete a provider without allocations.

        :raises cloud.ERRORS: Placement cannot be reached, or refuses, as it
            does while something is allocated there
        """
        self.delete_from_placement(f'/resource_providers/{uuid}')

    def _listed(self, query: dict[str, str]) -> dict[str, view.Provider]:
        return {
            found['uuid']: view.Provider(
                uuid=found['uuid'], name=found['name'],
                root=found['root_provider_uuid'])
            for found in self.placement('/resource_providers', query)[
                'resource_providers']}

    def _of_provider(self, uuid: str, part: str) -> typing.Any:
        return self.placement(f'/resource_providers/{uuid}/{part}')[part]

    def _read(self, listed: view.Provider) -> view.Provider:
        return dataclasses.replace(
            listed, inventories={
                resource_class: view.Inventory(
                    total=found['total'], reserved=found['reserved'])
                for resource_class, found in self._of_provider(
                    listed.uuid, 'inventories').items()},
            traits=frozenset(self._of_provider(listed.uuid, 'traits')),
            allocations=self._allocations(listed.uuid))

    def _allocations(self, uuid: str) -> view.Amounts:
        return {consumer: dict(found[_RESOURCES]) for consumer, found
                in self._of_provider(uuid, 'allocations').items()}

    # -- Nova ---------------------------------------------------------------

    def computes(self) -> frozenset[str]:
        """Return the hosts of all nova-compute services.

        :raises cloud.ERRORS: Nova cannot be read
        """
        return frozenset(
            service['host'] for service in self.services())

    def flavors(self) -> tuple[view.Flavor, ...]:
        """Return all flavors that request resources, page by page.

        :raises cloud.ERRORS: Nova cannot be read
        """
        found = (
            view.Flavor(name=flavor['name'], resource_classes=tuple(
                key.partition(':')[2] for key in flavor['extra_specs']
                if key.partition(':')[0].startswith(_RESOURCES)))
            for flavor in self.all_flavors())
        return tuple(flavor for flavor in found if flavor.resource_classes)

    def server(self, uuid: str) -> view.Server | None:
        """Return an instance of any project; None: Nova does not have it.

        :raises cloud.ERRORS: Nova cannot be read
        """
        found = self.find_server(uuid)
        return None if found is None else view.Server(
            uuid=uuid, host=found.get('OS-EXT-SRV-ATTR:host'),
            task=found.get('OS-EXT-STS:task_state'))
