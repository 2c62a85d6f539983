# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage device cleanings``: the ledger of a device's cleanings.

The chain of records is verified here, not by gpgpu-conductor.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence

from cliff import lister

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import device_name
from gpgpu_plugin.cmd import paging
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.domain import ledger
from gpgpu_plugin.domain import sanitization
from gpgpu_plugin.gpu_map import text

SEC21_05 = 'sec21-05'

_LIST = ('number', 'finished_at', 'verdict', 'policy', 'steps',
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


class DeviceCleanings(reach.Command, lister.Lister):
    """List how a device was cleaned, with the evidence, and verify it."""

    _records: Sequence[ledger.Record] = ()

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        device_name.add_argument(
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
        paging.add_arguments(parser, 'its number')
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        part = parsed_args.limit or parsed_args.marker
        if part and (parsed_args.verify or parsed_args.export):
            raise exception.Invalid(
                field='--limit or --marker', value=part,
                expected='neither with --verify or --export, which need the '
                         'whole history')
        device = device_name.uuid_of(self.api, parsed_args.device)
        # Before the records: it may be behind them, but not ahead.
        head = self.api.device_ledger_head(gpgpu_context.admin(), device)
        records = self.api.device_history(
            gpgpu_context.admin(), device,
            limit=parsed_args.limit, marker=parsed_args.marker)
        # And after them: nobody wrote what is beyond it.
        later = self.api.device_ledger_head(gpgpu_context.admin(), device)
        if parsed_args.export:
            self._print(sanitization.export(
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

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Rows:
        return columns.rows(
            map(_row, self._records),
            (*_LIST, 'reason') if parsed_args.long else _LIST)

    def _print(self, value: object) -> None:
        self.app.stdout.write(json.dumps(value, indent=2) + '\n')

    def _verify(self, head: ledger.Head,
                records: Sequence[ledger.Record],
                later: ledger.Head) -> None:
        """Say on stderr that a chain is whole.

        :raises Conflict: it is not
        """
        defect = ledger.defect(records, head, later)
        if defect is not None:
            raise exception.Conflict(
                kind='history of device', name=head.device_uuid,
                reason=f'{defect}. Compare the history with an earlier '
                       f'export, and find out who wrote to the database')
        last = records[-1].hash if records else 'none'
        self.note(f'{text.counted(len(records), "record")} verified; hash of '
                  f'the last one: {last}')

    def _present(self, device: str) -> sanitization.Present:
        try:
            shown = self.api.device_show(gpgpu_context.admin(), device)
        except exception.NotFound:
            return sanitization.Present()
        return sanitization.Present(
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
