# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage device`` and ``hold``: devices, holds, cleanings."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence

from cliff import lister
from cliff import show

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.cmd import names
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import health as health_rules
from gpgpu_plugin.domain import ledger
from gpgpu_plugin.domain import variant as variant_rules
from gpgpu_plugin.gpu_map import text as text_mod

_LIST = ('uuid', 'host', 'address', 'type', 'variant', 'vgpu_type',
         'shown_state', 'enabled', 'health', 'host_state', 'used_by',
         'project_id', 'serial', 'numa_node', 'slot', 'link_partitions',
         'stable_id', 'reason')
_FAULTY = (*_LIST, 'health_reason')
_ALL = (*_FAULTY, 'present', 'companions', 'replaced_by')


class DeviceList(reach.ConductorCommand, lister.Lister):
    """List devices."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--host', help='only devices of this host')
        parser.add_argument('--variant', help='only devices of this variant')
        parser.add_argument(
            '--state', choices=[*map(str, device_rules.SHOWN_STATES)],
            help='only devices shown in this state')
        parser.add_argument(
            '--type', choices=list(variant_rules.TYPES),
            help='only devices of variants of this type')
        parser.add_argument('--vgpu-type', metavar='NAME',
                            help='only vGPUs of this type')
        parser.add_argument(
            '--health', choices=[str(found) for found in health_rules.Health],
            help='only GPUs with this health')
        parser.add_argument(
            '--faulty', action='store_true',
            help='only devices that are missing or quarantined, and GPUs '
                 'whose health is degraded or failed')
        parser.add_argument('--project', metavar='ID',
                            help='only devices assigned to instances of this '
                                 'project')
        parser.add_argument('--instance', '--used-by', dest='instance',
                            metavar='INSTANCE',
                            help='only devices assigned to this instance')
        parser.add_argument('--all', action='store_true',
                            help='also retired devices, with further columns')
        listing.add_page_arguments(parser, 'its UUID')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        api, context = self.api, gpgpu_context.admin()
        if parsed_args.variant:
            api.variant_show(context, parsed_args.variant)
        shown = _FAULTY if parsed_args.faulty else _LIST
        return listing.rows(
            api.device_list(
                context, host=parsed_args.host,
                variant=parsed_args.variant, state=parsed_args.state,
                used_by=names.optional_server_uuid(self, parsed_args.instance),
                project=parsed_args.project, type=parsed_args.type,
                vgpu_type=parsed_args.vgpu_type, health=parsed_args.health,
                faulty=parsed_args.faulty, include_retired=parsed_args.all,
                limit=parsed_args.limit, marker=parsed_args.marker),
            _ALL if parsed_args.all else shown)


class OneDevice(reach.ConductorCommand, show.ShowOne):
    """Base of a command about one device."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        names.add_device_argument(parser)
        return parser

    def uuid(self, parsed_args: argparse.Namespace) -> str:
        """Return the UUID of the device."""
        return names.device_uuid_of(self.api, parsed_args.device)


class DeviceShow(OneDevice):
    """Show a device."""

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        return listing.fields(self.api.device_show(
            gpgpu_context.admin(), self.uuid(parsed_args)))


class DeviceAccept(reach.ConductorCommand, lister.Lister):
    """Take new devices of a host as clean without a cleaning.

    Only devices that are dirty for being new are accepted. All others, and
    those that are being cleaned, are refused.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('host', help='name of the nova-compute service')
        parser.add_argument(
            'address', nargs='+',
            help='PCI address of a device there, repeatable')
        parser.add_argument(
            '--reason', required=True, metavar='TEXT',
            help='why they are known to be clean, for the ledger')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        uuids = [names.device_uuid_of(self.api, [parsed_args.host, address])
                 for address in parsed_args.address]
        return listing.rows(self.api.device_accept(
            gpgpu_context.admin(), uuids, parsed_args.reason), _LIST)


class DeviceReplace(OneDevice):
    """Retire a GPU, and accept the other card in its place.

    The command shows the other card, or the retired GPU if its host has not
    reported another one yet.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        shown = self.api.device_replace(
            gpgpu_context.admin(), self.uuid(parsed_args))
        if shown.state == device_rules.RETIRED:
            self.note(f'the next card that {shown.host} reports at '
                      f'{shown.address} takes the place of this one; until '
                      f'then the place is empty')
        return listing.fields(shown)


class DeviceRelease(OneDevice):
    """Have a device cleaned, and end what withdrew it."""

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        context, uuid = gpgpu_context.admin(), self.uuid(parsed_args)
        before = self.api.device_show(context, uuid).holds
        shown = self.api.device_release(context, uuid)
        for text in before:
            if text not in shown.holds:
                self.note(f'removed: {text}')
        return listing.fields(shown)


# -- ``gpgpu-manage hold``: why devices are not offered.


_HOLD_LIST = ('id', 'host', 'address', 'device', 'kind', 'since', 'actor',
              'reason')


class HoldList(reach.ConductorCommand, lister.Lister):
    """List holds of devices and hosts, the oldest first."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--host', help='only holds of the host and of devices there')
        parser.add_argument('--kind', choices=list(device_rules.HOLD_KINDS),
                            help='only holds of this kind')
        listing.add_page_arguments(parser, 'its ID')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        return listing.rows(self.api.hold_list(
            gpgpu_context.admin(), host=parsed_args.host,
            kind=parsed_args.kind, limit=parsed_args.limit,
            marker=parsed_args.marker), _HOLD_LIST)


class HoldAdd(OneDevice):
    """Keep a device, and the vGPUs on it, from being offered.

    Instances keep what they have, but a GPU that an instance has cannot be
    retired.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--kind', required=True, choices=list(device_rules.BY_OPERATORS),
            help='quarantined: something is wrong, it is cleaned afterwards; '
                 'disabled: not for now; retired: it leaves the cloud for '
                 'good, and its history stays')
        parser.add_argument(
            '--reason', metavar='TEXT',
            help='why, for whoever finds the device so; a quarantine needs '
                 'one')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        shown = self.api.hold_add(
            gpgpu_context.admin(), self.uuid(parsed_args), parsed_args.kind,
            parsed_args.reason)
        if (parsed_args.kind == device_rules.HoldKind.QUARANTINED
                and shown.state in device_rules.ASSIGNED_STATES):
            self.note(f'instance {shown.used_by} keeps the device; it is '
                      f'quarantined when its assignment ends')
        return listing.fields(shown)


class HoldRemove(OneDevice):
    """Remove holds of a device; it is cleaned if one withdrew it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--kind', required=True, action='append', dest='kinds',
            choices=list(device_rules.HoldKind),
            help='kind of a hold to remove, repeatable')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        return listing.fields(self.api.hold_remove(
            gpgpu_context.admin(), self.uuid(parsed_args),
            parsed_args.kinds))


# -- ``gpgpu-manage device cleanings``: the ledger of a device's cleanings.
#
# The chain of records is verified here, not by gpgpu-conductor.


SEC21_05 = 'sec21-05'

_LEDGER_LIST = ('number', 'finished_at', 'verdict', 'policy', 'steps',
                'instance_uuid', 'hash')
_SHOWN_OF_HASH = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Row:
    """A record as it is listed.

    :ivar steps: each step that the host took, with its outcome
    :ivar hash: its beginning
    """

    number: object
    finished_at: object
    verdict: object
    policy: object
    steps: tuple[str, ...]
    instance_uuid: object
    reason: object
    hash: str


class DeviceCleanings(reach.ConductorCommand, lister.Lister):
    """List how a device was cleaned, with the evidence, and verify it."""

    _records: Sequence[ledger.Record] = ()

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        names.add_device_argument(
            parser, '; a device that was deleted is named by its UUID')
        parser.add_argument(
            '--long', action='store_true',
            help='show all columns, such as the reason for each verdict')
        form = parser.add_mutually_exclusive_group()
        form.add_argument(
            '--json', action='store_true',
            help='print the records with all evidence, as they were hashed')
        form.add_argument(
            '--export', choices=[SEC21_05],
            help="print what NVIDIA's check SEC21-05 reads, as JSON")
        parser.add_argument(
            '--verify', action='store_true',
            help='fail if a record was changed or is missing')
        listing.add_page_arguments(parser, 'its number')
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        part = parsed_args.limit or parsed_args.marker
        if part and (parsed_args.verify or parsed_args.export):
            raise exception.Invalid(
                field='--limit or --marker', value=part,
                expected='neither with --verify or --export, which need the '
                         'whole history')
        device = names.device_uuid_of(self.api, parsed_args.device)
        # Before the records: it may be behind them, but not ahead.
        head = self.api.device_ledger_head(gpgpu_context.admin(), device)
        records = self.api.device_history(
            gpgpu_context.admin(), device,
            limit=parsed_args.limit, marker=parsed_args.marker)
        # And after them: nobody wrote what is beyond it.
        later = self.api.device_ledger_head(gpgpu_context.admin(), device)
        if parsed_args.export:
            self._print(ledger.export_sanitization(
                head, records, self._present(device), later))
        elif parsed_args.json:
            self._print([{**found.fields, 'hash': found.hash}
                         for found in records])
        else:
            self._records = records
            super().run(parsed_args)
        if parsed_args.verify:
            self._verify(head, records, later)
        return 0

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        return listing.rows(
            map(_row, self._records),
            (*_LEDGER_LIST, 'reason') if parsed_args.long else _LEDGER_LIST)

    def _print(self, value: object) -> None:
        self.app.stdout.write(json.dumps(value, indent=2) + '\n')

    def _verify(self, head: ledger.Head,
                records: Sequence[ledger.Record],
                later: ledger.Head) -> None:
        """Say on stderr that a chain is whole.

        :raises Conflict: it is not
        """
        defect = ledger.chain_defect(records, head, later)
        if defect is not None:
            raise exception.Conflict(
                kind='history of device', name=head.device_uuid,
                reason=f'{defect}. Compare the history with an earlier '
                       f'export, and find out who wrote to the database')
        last = records[-1].hash if records else 'none'
        self.note(
            f'{text_mod.counted(len(records), "record")} verified; hash of '
            f'the last one: {last}')

    def _present(self, device: str) -> ledger.Present:
        try:
            shown = self.api.device_show(gpgpu_context.admin(), device)
        except exception.NotFound:
            return ledger.Present()
        return ledger.Present(
            shown_state=shown.shown_state, in_use=shown.used_by is not None,
            host=shown.host, address=shown.address,
            vendor=shown.vendor or '', variant=shown.variant or '')


def _row(record: ledger.Record) -> _Row:
    fields = record.fields
    results = fields.get('results')
    return _Row(
        steps=tuple(f'{result.get("step")} {result.get("outcome")}'
                    for result in results if isinstance(result, dict))
        if isinstance(results, list) else (),
        hash=record.hash[:_SHOWN_OF_HASH], **{
            name: fields.get(name) for name in (
                'number', 'finished_at', 'verdict', 'policy',
                'instance_uuid', 'reason')})
