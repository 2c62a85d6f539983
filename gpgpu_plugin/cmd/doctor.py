# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage doctor``: is the cloud consistent, and what may be repaired.

It collects what the conductor, the hosts, Placement and Nova say, and prints
the drifts that two examinations found. ``doctor`` compares. Placement or Nova
that cannot be read is a drift, not an error: the rest is compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import time
import typing
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import openstack
import oslo_messaging
from cliff import lister

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import cloud as cloud_mod
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.doctor import cloud as cloud_drifts
from gpgpu_plugin.doctor import drift as drift_mod
from gpgpu_plugin.domain import health
from gpgpu_plugin.domain import naming
from gpgpu_plugin.gpu_map import text as text_mod
from gpgpu_plugin.rpc import conductor_client

DRIFT_LEFT = 3
ALL_REPAIRED = 4
NOT_EXAMINED = 5

_MAX_SECONDS = 3600

_COLUMNS = ('severity', 'drift', 'host', 'subject', 'outcome', 'says',
            'reason')
_ERRORS = (exception.GPUPluginException, oslo_messaging.MessagingException,
           *cloud_mod.ERRORS)
_UNKNOWN = drift_mod.DriftSeverity.UNKNOWN
_OURS = f'{naming.TRAIT_GPU},{naming.TRAIT_OWNER}'
_RESOURCES = 'resources'
_Drifts = dict[tuple[str, str, str], drift_mod.Drift]


class RepairOutcome(enum.StrEnum):
    """Outcome of one drift.

    ``unknown``: after the repairs, whoever found it could not look again.
    """

    FOUND = 'found'
    REPAIRED = 'repaired'
    LEFT = 'left'
    UNKNOWN = 'unknown'


@dataclasses.dataclass(frozen=True, kw_only=True)
class DriftRow:
    """A line of the output."""

    severity: str
    drift: str
    host: str | None
    subject: str
    outcome: str
    says: str
    reason: str


class ExaminedCloud(cloud_mod.Cloud):
    """Placement and Nova of a cloud."""

    # -- Placement ----------------------------------------------------------

    def providers(
        self, wanted: Iterable[str], node: str | None,
    ) -> tuple[dict[str, cloud_drifts.ProviderRecord],
               list[cloud_drifts.ProviderRecord]]:
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

    def _listed(self, query: dict[str, str],
                ) -> dict[str, cloud_drifts.ProviderRecord]:
        return {
            found['uuid']: cloud_drifts.ProviderRecord(
                uuid=found['uuid'], name=found['name'],
                root=found['root_provider_uuid'])
            for found in self.placement('/resource_providers', query)[
                'resource_providers']}

    def _of_provider(self, uuid: str, part: str) -> typing.Any:
        return self.placement(f'/resource_providers/{uuid}/{part}')[part]

    def _read(self, listed: cloud_drifts.ProviderRecord,
              ) -> cloud_drifts.ProviderRecord:
        return dataclasses.replace(
            listed, inventories={
                resource_class: cloud_drifts.ProviderInventory(
                    total=found['total'], reserved=found['reserved'])
                for resource_class, found in self._of_provider(
                    listed.uuid, 'inventories').items()},
            traits=frozenset(self._of_provider(listed.uuid, 'traits')),
            allocations=self._allocations(listed.uuid))

    def _allocations(self, uuid: str) -> dict[str, dict[str, int]]:
        return {consumer: dict(found[_RESOURCES]) for consumer, found
                in self._of_provider(uuid, 'allocations').items()}

    # -- Nova ---------------------------------------------------------------

    def flavors(self) -> tuple[cloud_drifts.FlavorRecord, ...]:
        """Return all flavors that request resources, page by page.

        :raises cloud.ERRORS: Nova cannot be read
        """
        found = (
            cloud_drifts.FlavorRecord(name=flavor['name'],
                                      resource_classes=tuple(
                key.partition(':')[2] for key in flavor['extra_specs']
                if key.partition(':')[0].startswith(_RESOURCES)))
            for flavor in self.all_flavors())
        return tuple(flavor for flavor in found if flavor.resource_classes)

    def server(self, uuid: str) -> cloud_drifts.ServerRecord | None:
        """Return an instance of any project; None: Nova does not have it.

        :raises cloud.ERRORS: Nova cannot be read
        """
        found = self.find_server(uuid)
        return None if found is None else cloud_drifts.ServerRecord(
            host=found.get('OS-EXT-SRV-ATTR:host'),
            task=found.get('OS-EXT-STS:task_state'))


class Examination:
    """Scope of the examination of one command.

    :param host: only this one; None: all
    """

    def __init__(self, api: conductor_client.ConductorAPI,
                 cloud: ExaminedCloud, host: str | None) -> None:
        self._api = api
        self._cloud = cloud
        self._host = host
        # What may be deleted: only what Placement itself has just listed.
        self._unknown_providers: frozenset[str] = frozenset()
        self.hosts = 0

    def run(self) -> _Drifts:
        """Return the drifts by their identity."""
        context = gpgpu_context.admin()
        records = self._api.examine_database(context, host=self._host)
        cloud = self._api.examine_cloud(context)
        self.hosts = len(records)
        found = [
            *(one for record in records for one in record.drifts),
            # What a host has says nothing about rows of a backup.
            *self._api.examine_hosts(context, [
                record.host for record in records if not any(
                    found.name == 'host_not_reported'
                    for found in record.drifts)]),
            *_or_unknown('placement_not_examined',
                         lambda: self._placement(records)),
            *_or_unknown('nova_not_examined',
                         lambda: self._nova(records, cloud))]
        if self._host is None:
            found += cloud.drifts
        return {one.key: one for one in drift_mod.allowed(found)}

    def _placement(self, records: Sequence[cloud_drifts.HostRecord],
                   ) -> Iterator[drift_mod.Drift]:
        expected = [group.provider_uuid for record in records
                    for group in record.groups]
        providers, ours = self._cloud.providers(
            expected, records[0].node_uuid if self._host else None)
        find_server = functools.cache(self._cloud.server)
        for record in records:
            yield from cloud_drifts.compare(record, providers, find_server)
        if self._host is None:
            unknown = list(cloud_drifts.unknown_providers(ours, {
                record.node_uuid for record in records}))
            self._unknown_providers = frozenset(
                found.subject for found in unknown)
            yield from unknown

    def _nova(self, records: Sequence[cloud_drifts.HostRecord],
              cloud: cloud_drifts.CloudRecord) -> Iterator[drift_mod.Drift]:
        yield from cloud_drifts.services(
            [record.host for record in records],
            {service['host'] for service in self._cloud.services()})
        if self._host is None:
            yield from cloud_drifts.flavors(
                self._cloud.flavors(), cloud.resource_classes)

    def repair(self, drifts: Iterable[drift_mod.Drift],
               note: Callable[[str], object]) -> None:
        """Execute the repairs of drifts; the next examination says if.

        One that fails does not stop those after it, unless the conductor, its
        database or its broker cannot be reached.

        :param note: called with a line for each that failed
        """
        for what, repair in self._repairs(list(drifts), note):
            try:
                repair()
            except _ERRORS as exc:
                note(f'{what} failed: {reach.message(exc)}')
                if isinstance(exc, exception.ConductorUnavailable) and (
                        not isinstance(exc, exception.DatabaseBusy)):
                    note('the repairs after it were not tried')
                    return

    def _repairs(self, drifts: Sequence[drift_mod.Drift],
                 note: Callable[[str], object]) -> Iterator[
                     tuple[str, Callable[[], object]]]:
        """Yield what each repair is and what executes it, in their order."""
        context = gpgpu_context.admin()
        for found in drifts:
            if found.repair in drift_mod.OF_CONDUCTOR:
                yield (f'{found.repair} of {found.subject} on {found.host}',
                       functools.partial(self._api.repair_database, context,
                                         found, reach.actor()))
        expected = functools.cache(self._expected_providers)
        for found in drifts:
            if (found.repair is drift_mod.Repair.PROVIDER
                    and found.subject in self._unknown_providers):
                yield (f'deletion of provider {found.subject}',
                       functools.partial(self._delete_provider, found.subject,
                                         expected))
        # What the database offers now.
        for wanted, hosts in drift_mod.hosts_to_repair(drifts).items():
            yield (f'{", ".join(wanted)} on {", ".join(hosts)}',
                   functools.partial(self._repair_hosts, hosts, wanted, note))

    def _repair_hosts(self, hosts: Sequence[str],
                      wanted: Sequence[drift_mod.Repair],
                      note: Callable[[str], object]) -> None:
        for found in self._api.examine_hosts(
                gpgpu_context.admin(), hosts, wanted):
            if found.severity is _UNKNOWN:
                note(f'{", ".join(wanted)} on {found.host}: '
                     f'{"; ".join(found.says.values())}')

    def _expected_providers(self) -> set[str]:
        return {
            group.provider_uuid for record in self._api.examine_database(
                gpgpu_context.admin()) for group in record.groups}

    def _delete_provider(self, uuid: str,
                         expected: Callable[[], set[str]]) -> None:
        """Delete a provider, but not of a host that reported meanwhile."""
        if uuid not in expected():
            self._cloud.delete_provider(uuid)


def _or_unknown(name: str, find: Callable[[], Iterator[drift_mod.Drift]],
                ) -> list[drift_mod.Drift]:
    """Return drifts, or that they are unknown."""
    try:
        return list(find())
    except cloud_mod.ERRORS as exc:
        authority = name.partition('_')[0]
        return [drift_mod.of(name, None, authority, **{
            authority: base.first_line(exc)})]


class Doctor(reach.ConductorCommand, lister.Lister):
    """Compare database, Placement, Nova and hosts, and list drifts.

    Exit code: 0 consistent; 3 a drift is left; 4 all drifts were repaired; 5
    something could not be examined. It reads Placement and Nova as the
    administrator of --os-cloud.
    """

    _code = 0

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--host', help='examine only this host')
        parser.add_argument(
            '--fix', action='store_true',
            help='repair what can be repaired safely; without it, nothing '
                 'is changed')
        parser.add_argument(
            '--confirm-after', type=_seconds, default=5, metavar='SECONDS',
            help='seconds between two searches for drifts; only what both '
                 'find is listed, since other contradictions were changes '
                 'that were going on (default: 5)')
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; return its exit code."""
        return super().run(parsed_args) or self._code

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        connect = self.manage.connect or openstack.connect
        examination = Examination(
            self.api, ExaminedCloud(functools.partial(
                connect, cloud=self.app.options.os_cloud)), parsed_args.host)
        found = self._lasting(examination, parsed_args.confirm_after)
        left = found
        if parsed_args.fix and any(
                one.repair for one in found.values()):
            examination.repair(found.values(), self.note)
            left = _afterwards(examination)
            found |= _unknown(left)
        rows = _rows(found, left, fix=parsed_args.fix)
        self._code = _code(rows)
        failed = len(self.api.device_list(
            gpgpu_context.admin(), host=parsed_args.host,
            health=health.Health.FAILED))
        self.note(_summary(examination.hosts, rows) + bool(failed) * (
            f'; {text_mod.counted(failed, "GPU")} failed, see "gpgpu-manage '
            f'device list --faulty"'))
        return listing.rows(rows, _COLUMNS)

    def _lasting(self, examination: Examination, seconds: float) -> _Drifts:
        """Return the drifts that two examinations find.

        It is kept if one of them could not look.
        """
        first = examination.run()
        if not first:
            return {}
        time.sleep(seconds)
        second = examination.run()
        return _unknown(first) | _unknown(second) | {
            key: found for key, found in second.items()
            if key in first and (found.name not in drift_mod.COUNTED
                                 or found.says == first[key].says)}


def _afterwards(examination: Examination) -> _Drifts:
    """Return the drifts after the repairs."""
    try:
        return examination.run()
    except _ERRORS as exc:
        found = drift_mod.of('conductor_not_examined', None, 'conductor',
                             conductor=reach.message(exc))
        return {found.key: found}


def _seconds(text: str) -> float:
    """Return seconds, for argparse.

    :raises ArgumentTypeError: it is no number of seconds, or a negative one
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(
            f'{text!r}: expected seconds, 0 to {_MAX_SECONDS}')
    return seconds


def _unknown(found: _Drifts) -> _Drifts:
    return {key: one for key, one in found.items()
            if one.severity is _UNKNOWN}


def _rows(found: _Drifts, left: _Drifts, *, fix: bool) -> list[DriftRow]:
    order = list(drift_mod.DriftSeverity)
    silent = {one.host for one in _unknown(left).values()}
    return [_row(left.get(key, known), _outcome(known, left, silent, fix=fix))
            for key, known in sorted(
                found.items(), key=lambda item: (
                    order.index(item[1].severity), item[0]))]


def _outcome(known: drift_mod.Drift, left: _Drifts, silent: set[str | None], *,
             fix: bool) -> RepairOutcome:
    """Return what became of a drift.

    :param silent: hosts that could not be examined in the end; None: neither
        could Placement or Nova
    """
    if not fix:
        return RepairOutcome.FOUND
    if known.key in left:
        return RepairOutcome.LEFT
    return (RepairOutcome.UNKNOWN if silent & {None, known.host}
            else RepairOutcome.REPAIRED)


def _row(found: drift_mod.Drift, outcome: RepairOutcome) -> DriftRow:
    return DriftRow(
        severity=found.severity, drift=found.name, host=found.host,
        subject=found.subject, outcome=outcome, says='; '.join(
            f'{name}: {said}' for name, said in found.says.items()),
        reason=(f'{found.repair}: {found.reason}' if found.repair
                else f'not repaired: {found.reason}'))


def _code(rows: Sequence[DriftRow]) -> int:
    """Return the exit code."""
    unknown = [row for row in rows if _UNKNOWN in (row.severity, row.outcome)]
    left = [row for row in rows
            if row not in unknown and row.outcome != RepairOutcome.REPAIRED]
    if left:
        return DRIFT_LEFT
    if unknown:
        return NOT_EXAMINED
    return ALL_REPAIRED if rows else 0


def _summary(hosts: int, rows: Sequence[DriftRow]) -> str:
    """Return the answer in one line."""
    examined = f'{text_mod.counted(hosts, "host")} examined'
    if not rows:
        return f'{examined}: consistent'
    unknown = sum(row.severity == _UNKNOWN for row in rows)
    repaired = sum(row.outcome == RepairOutcome.REPAIRED for row in rows)
    return (f'{examined}: {text_mod.counted(len(rows) - unknown, "drift")}, '
            f'{repaired} repaired, {unknown} could not be examined')
