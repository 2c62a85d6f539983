# SPDX-License-Identifier: Apache-2.0
"""Facts from Nova, Glance and Placement for ``gpgpu-manage why-not``."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import typing
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import openstack

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import cloud as cloud_mod
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain import placement as placement_rules
from gpgpu_plugin.domain import why_not
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import scheduling as scheduling_obj

SERVICE_DOWN = 'service_down'
SERVICE_DISABLED = 'service_disabled'
NO_SERVICE = 'no_service'
PLACEMENT_REFUSES = 'placement_refuses'
ISOLATED_AGGREGATE = 'isolated_aggregate'
"""Reasons that come from Nova's services and aggregates, and from Placement
alone."""

LIMIT = 5000
"""Candidates in one answer. Further hosts are asked for one by one."""

_CPUS = ('VCPU', 'PCPU')
_RAM = ('MEMORY_MB',)
Amounts = Mapping[str, int]

_NUMBERED = 'hw:numa_nodes'
_POLICY = 'hw:cpu_policy'
_HAS_TOPOLOGY = ('hw:mem_page_size', 'hw:cpu_realtime')
_OF_IMAGE = {_NUMBERED: 'hw_numa_nodes', _POLICY: 'hw_cpu_policy'}
"""Properties of an image that count where the flavor has no such extra spec
(nova.virt.hardware)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """Instance that is to be placed.

    :ivar request: what the flavor requests of the plugin
    :ivar guest_nodes: number of NUMA nodes of the guest; None: it has no
        NUMA topology
    :ivar needs: what the flavor needs of Placement
    :ivar vcpus: of the flavor, as is ``ram`` in MiB
    :ivar remarks: what the reader should know about them, a sentence each
    """

    request: request_mod.Request
    guest_nodes: int | None
    needs: placement_rules.Needs
    vcpus: int
    ram: int
    remarks: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A host that Placement offers, with what Nova's HostState has of it.

    Allocation ratios and reserved amounts are part of the totals.

    :ivar uuid: UUID of the compute node
    :ivar allocation_candidates: what would be allocated, by provider
    """

    uuid: str
    allocation_candidates: Sequence[Mapping[str, typing.Any]]
    vcpus_total: int
    vcpus_used: int
    total_usable_ram_mb: int
    free_ram_mb: int
    cpu_allocation_ratio: float = 1.0
    ram_allocation_ratio: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidates:
    """Answer of Placement.

    :ivar of: by the UUID of the compute node
    :ivar complete: whether it has no others
    :ivar free: free amounts by provider and resource class
    """

    of: Mapping[str, Candidate]
    complete: bool
    free: Mapping[str, Amounts]


class WhyNotCloud(cloud_mod.Cloud):
    """Placement, Nova and Glance of a cloud, for one question."""

    @functools.cached_property
    def _flavors(self) -> list[cloud_mod.JSON]:
        return list(self.all_flavors())

    def flavor_requests(self, most: int,
                        ) -> tuple[scheduling_obj.CountedRequests, ...]:
        """Return one request of each kind that flavors make.

        They are those that nova-scheduler reads when it starts.

        :param most: number of flavors
        """
        enabled = (flavor for flavor in self._flavors
                   if not flavor.get('OS-FLV-DISABLED:disabled'))
        kinds = dict.fromkeys(_kinds(itertools.islice(enabled, most)))
        return tuple(
            scheduling_obj.CountedRequests(kind, 1.0) for kind in kinds)

    def asked_by_flavor(self, name: str) -> Asked:
        """Return what a flavor requests, by name or ID.

        :raises NotFound: Nova has no such flavor
        :raises Invalid: its extra specs are no request
        """
        for flavor in self._flavors:
            if name in (flavor['name'], flavor['id']):
                return _asked(flavor, {}, ())
        raise exception.NotFound(
            kind='flavor', name=f'{name} (see "openstack flavor list --all")')

    def asked_by_server(self, uuid: str) -> Asked:
        """Return what a server requested.

        :raises NotFound: Nova has no such server
        :raises Invalid: its flavor and image are no request
        """
        server = self.find_server(uuid)
        if server is None:
            raise exception.NotFound(
                kind='server', name=f'{uuid} (of a server that was deleted, '
                                    f'use --flavor)')
        return self.asked_of(server)

    def asked_of(self, server: dict[str, cloud_mod.JSON]) -> Asked:
        """Return what a server requested, as Nova describes it.

        :raises Invalid: its flavor and image are no request
        """
        properties, remarks = self._image(server)
        if not server['image']:
            server['flavor']['disk'] = 0  # It boots from a volume.
        return _asked(server['flavor'], properties, (
            _of_server(server), *remarks))

    def _image(self, server: Mapping[str, cloud_mod.JSON],
               ) -> tuple[Mapping[str, str], tuple[str, ...]]:
        """Return the properties of a server's image, and remarks."""
        if not server['image']:
            return {}, ('the server boots from a volume, whose image is not '
                        'examined',)
        try:
            return self.image(server['image']['id']), ()
        except cloud_mod.ERRORS as exc:
            return {}, (
                f'its image is not examined: {base.first_line(exc)}',)

    def nova_findings(self, needs: placement_rules.Needs,
                      ) -> Mapping[str, tuple[why_not.Finding, ...]]:
        """Return by host why Nova would not select it."""
        isolated = _isolated(
            self.nova('/os-aggregates')['aggregates'], needs)
        return {
            service['host']: (*_of_service(service),
                              *isolated.get(service['host'], ()))
            for service in self.services()}

    def candidates(self, needs: placement_rules.Needs,
                   node: str | None = None) -> Candidates:
        """Return the hosts that Placement offers, all in one question.

        :param node: only this compute node
        """
        limit = LIMIT if node is None else 1
        answer = self.placement('/allocation_candidates', {
            **needs.query, 'limit': str(limit),
            **({} if node is None else {'in_tree': node})})
        summaries = answer['provider_summaries']
        options = collections.defaultdict(list)
        for option in answer['allocation_requests']:
            roots = {summaries[provider]['root_provider_uuid']
                     for provider in option['allocations']}
            for root in roots:
                options[root].append(option)
        return Candidates(
            of={root: _candidate(root, summaries[root]['resources'], found)
                for root, found in options.items()},
            complete=node is None and len(
                answer['allocation_requests']) < limit,
            free={provider: {
                name: amount['capacity'] - amount['used']
                for name, amount in summary['resources'].items()}
                for provider, summary in summaries.items()})

    def placement_findings(self, node: str, needs: placement_rules.Needs,
                           ) -> tuple[why_not.Finding, ...]:
        """Return why Placement has no candidate on a host that it lacks.

        :param node: UUID of the compute node
        """
        return placement_rules.findings(self._tree(node), needs) or (
            why_not.Finding(
                reason=PLACEMENT_REFUSES,
                detail='Placement has no candidate, and its inventories and '
                       'traits do not show why; see "openstack allocation '
                       'candidate list"'),)

    def _tree(self, node: str) -> list[placement_rules.PlacementProvider]:
        """Return the providers of a host, the root first."""
        found = self.placement('/resource_providers', {'in_tree': node})[
            'resource_providers']
        return [self._provider(listed) for listed in sorted(
            found, key=lambda one: one['uuid'] != node)]

    def _provider(self, listed: Mapping[str, str],
                  ) -> placement_rules.PlacementProvider:
        path = f'/resource_providers/{listed["uuid"]}'
        usages = self.placement(f'{path}/usages')['usages']
        return placement_rules.PlacementProvider(
            name=listed['name'],
            traits=frozenset(self.placement(f'{path}/traits')['traits']),
            inventories={
                name: placement_rules.PlacementInventory(
                    used=usages.get(name, 0), **{
                        field: record[field] for field in (
                            'total', 'reserved', 'allocation_ratio',
                            'min_unit', 'max_unit', 'step_size')})
                for name, record in self.placement(
                    f'{path}/inventories')['inventories'].items()})


class WhyNotCommand(reach.ConductorCommand):
    """Mixin of a command that also asks the cloud of --os-cloud."""

    @functools.cached_property
    def source(self) -> WhyNotCloud:
        """Return the cloud, which is connected to at the first question."""
        return WhyNotCloud(functools.partial(
            self.manage.connect or openstack.connect,
            cloud=self.manage.options.os_cloud))

    @contextlib.contextmanager
    def asking(self, kind: str, name: str) -> Iterator[None]:
        """Ask for what a command cannot do without.

        :param kind: of what the command is about
        :raises Conflict: the cloud cannot be asked
        """
        try:
            yield
        except cloud_mod.ERRORS as exc:
            raise exception.Conflict(
                kind=kind, name=name,
                reason=f'Nova or Placement cannot be asked (clouds.yaml, '
                       f'cloud {self.manage.options.os_cloud or "of OS_CLOUD"}'
                       f'): {base.first_line(exc)}; name the cloud of an '
                       f'administrator with --os-cloud before the command',
            ) from exc


def _kinds(flavors: Iterable[Mapping[str, cloud_mod.JSON]],
           ) -> Iterator[scheduling_obj.RequestKind]:
    for flavor in flavors:
        # One whose extra specs are wrong cannot be requested.
        with contextlib.suppress(exception.Invalid):
            yield scheduling_obj.RequestKind.of(
                flavor['vcpus'], flavor['ram'],
                request_mod.from_extra_specs(flavor['extra_specs']))


def _asked(flavor: Mapping[str, cloud_mod.JSON], image: Mapping[str, str],
           remarks: tuple[str, ...]) -> Asked:
    """Return what a flavor and an image request.

    :raises Invalid: their properties are no request
    """
    specs: Mapping[str, str] = flavor['extra_specs']
    hardware = {spec: image[name] for spec, name in _OF_IMAGE.items()
                if name in image} | {**specs}
    traits = {key: value for key, value in image.items()
              if key.startswith('trait:')}
    if any(key.startswith(('resources', 'trait'))
           and key.partition(':')[0] not in ('resources', 'trait')
           for key in specs):
        remarks += ('its suffixed groups of resources and traits are not '
                    'examined',)
    return Asked(
        request=request_mod.from_extra_specs(
            specs, image.get(request_mod.PCI_NUMA_POLICY_PROPERTY)),
        guest_nodes=_guest_nodes(hardware), remarks=remarks,
        vcpus=flavor['vcpus'], ram=flavor['ram'],
        needs=placement_rules.needs(
            vcpus=flavor['vcpus'], ram=flavor['ram'],
            disk=placement_rules.gib(
                root=flavor['disk'],
                # Nova's answers differ in their names.
                ephemeral=flavor.get('OS-FLV-EXT-DATA:ephemeral',
                                     flavor.get('ephemeral', 0)),
                swap=flavor.get('swap') or 0),
            extra_specs={**hardware, **traits}))


def _guest_nodes(specs: Mapping[str, str]) -> int | None:
    """Return on how many NUMA nodes the guest will be, as Nova decides.

    Some extra specs give it a topology of one node without a number.
    """
    number = specs.get(_NUMBERED)
    if number is not None and number.isdecimal():
        return int(number)
    has_own_cpus = specs.get(_POLICY, 'shared') != 'shared'
    return 1 if has_own_cpus or any(
        key in specs for key in _HAS_TOPOLOGY) else None


def _of_server(server: Mapping[str, cloud_mod.JSON]) -> str:
    host = server.get('OS-EXT-SRV-ATTR:host')
    place = f' on {host}' if host else ''
    fault = server.get('fault', {}).get('message')
    return (f'server {server["name"]} is {server["status"]}{place}; hosts '
            f'are examined as for another one like it'
            + (f'; its fault is: {fault.rstrip(".")}' if fault else ''))


def _of_service(service: Mapping[str, cloud_mod.JSON],
                ) -> Iterator[why_not.Finding]:
    if service['status'] != 'enabled':
        yield why_not.Finding(
            reason=SERVICE_DISABLED,
            detail=f'its nova-compute is disabled: '
                   f'{service.get("disabled_reason") or "no reason given"}')
    if service['state'] != 'up':
        forced = ', forced by an operator' if service.get(
            'forced_down') else ''
        yield why_not.Finding(
            reason=SERVICE_DOWN, detail=f'its nova-compute is down{forced}')


def _isolated(aggregates: Iterable[cloud_mod.JSON],
              needs: placement_rules.Needs,
              ) -> Mapping[str, list[why_not.Finding]]:
    """Return by host why an aggregate of the conductor is no candidate.

    Whether nova-scheduler excludes it, no API says: whoever has the conductor
    keep an aggregate wants it to.
    """
    found: dict[str, list[why_not.Finding]] = collections.defaultdict(list)
    if naming.TRAIT_GPU_HOST in needs.required:
        return found
    for aggregate in aggregates:
        if aggregate['metadata'].get(naming.AGGREGATE_MARK) == 'true':
            for host in aggregate['hosts']:
                found[host].append(why_not.Finding(
                    reason=ISOLATED_AGGREGATE,
                    detail=f'it is in aggregate {aggregate["name"]}, and the '
                           f'flavor lacks {naming.GPU_HOST_KEY}=required, '
                           f'which "gpgpu-manage flavor set" adds'))
    return found


def _candidate(root: str, resources: Mapping[str, Amounts],
               options: Sequence[Mapping[str, typing.Any]]) -> Candidate:
    def total(names: Sequence[str], what: str) -> int:
        return sum(resources[name][what] for name in names
                   if name in resources)
    ram = total(_RAM, 'capacity')
    return Candidate(
        uuid=root, allocation_candidates=options,
        vcpus_total=total(_CPUS, 'capacity'), vcpus_used=total(_CPUS, 'used'),
        total_usable_ram_mb=ram, free_ram_mb=ram - total(_RAM, 'used'))
