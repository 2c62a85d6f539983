# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage variant``: names of device models."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import typing
from collections.abc import Mapping
from collections.abc import Sequence

from cliff import command
from cliff import lister
from cliff import show

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import catalogue
from gpgpu_plugin.cmd import group
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import variant as rules
from gpgpu_plugin.domain import vgpu
from gpgpu_plugin.objects import admin

_FIELDS = ('vendor', 'device', 'subsystem_vendor', 'subsystem', 'revision',
           'type', 'resource_class', 'mix_policy', 'allocation_policy',
           'cleaning_policy', 'memory_mib')
_OPTIONS = {'trait': 'traits', 'link-partitions': 'link_partitions', **{
    name.replace('_', '-'): name for name in _FIELDS
    if name not in ('vendor', 'device', 'type')}}
"""Fields that can be unset, by option."""
_HELP = {
    'vendor': 'PCI ID of the vendor, 4 hex digits (10de is NVIDIA)',
    'device': 'PCI ID of the device, 4 hex digits; see "gpgpu-host list"',
    'subsystem_vendor': 'PCI ID of the board\'s vendor, 4 hex digits '
                        '(default: any)',
    'subsystem': 'PCI ID of the board, 4 hex digits; needs '
                 '--subsystem-vendor (default: any)',
    'revision': 'PCI revision, 2 hex digits (default: any)',
    'allocation_policy': 'fill GPUs and NUMA nodes in use first '
                         '(depth_first) or spread over all (breadth_first), '
                         'where topology does not decide; a group may have '
                         'another policy, see "group set" (default: '
                         'depth_first)',
    'resource_class': 'resource class of a whole GPU '
                      '(default: CUSTOM_GPU_<name>)',
    'type': 'kind of device; only gpu (default: gpu)',
    'mix_policy': 'which vGPUs may be on one GPU together: '
               + ', '.join(vgpu.VGPUMixPolicy) + ' (default: same_type)',
    'cleaning_policy': 'steps that a whole GPU must pass before each tenant: '
                       + ', '.join(cleaning.POLICIES)
                       + ', or at least two steps joined by "+", reset or flr '
                         'first (flr+settings+canary) (default: default)',
    'memory_mib': 'MiB of memory of a whole GPU, all of which a scrub must '
                  'verify (default: unknown)'}
_COLUMNS = ('name', *_FIELDS, 'unsupported_ok', 'traits', 'devices',
            'status', 'reason', 'hosts_pending')


def _add_fields(parser: argparse.ArgumentParser, required: bool) -> None:
    parser.add_argument('name', help='name of the variant')
    for name in _FIELDS:
        parser.add_argument(
            '--' + name.replace('_', '-'),
            required=required and name in ('vendor', 'device'),
            type=listing.number_argument if name == 'memory_mib' else str,
            help=_HELP[name])
    parser.add_argument('--trait', action='append', dest='traits',
                        help='trait of the resource providers, such as '
                             'CUSTOM_FAST, repeatable; the given traits '
                             'replace all that the variant has')
    parser.add_argument(
        '--link-partitions', type=pathlib.Path, metavar='FILE',
        help=f'{group.HELP}; a group may have others, see "group set"')
    parser.add_argument(
        '--unsupported-ok', action=argparse.BooleanOptionalAction,
        help='offer GPUs that guests normally cannot use as a whole; use it '
             'only if you have a remedy for the reason in "device show"')


def _with_defaults(before: admin.VariantInfo,
                   parsed_args: argparse.Namespace) -> admin.VariantInfo:
    """Return a variant without the fields that the operator unsets.

    :raises Invalid: one of them is set, too
    """
    names = [_OPTIONS[option] for option in parsed_args.unset]
    for option in parsed_args.unset:
        if getattr(parsed_args, _OPTIONS[option]) is not None:
            raise exception.Invalid(
                field='--unset', value=option,
                expected=f'a field that --{option} does not set')
    defaults: dict[str, typing.Any] = {
        field.name: field.default for field in dataclasses.fields(before)
        if field.name in names}
    return dataclasses.replace(before, **defaults)


def _given(parsed_args: argparse.Namespace) -> dict[str, typing.Any]:
    """Return the fields that the operator gave."""
    given = {name: getattr(parsed_args, name) for name in _FIELDS
             if getattr(parsed_args, name) is not None}
    if parsed_args.traits is not None:
        given['traits'] = tuple(parsed_args.traits)
    if parsed_args.link_partitions is not None:
        given[
            'link_partitions'] = group.read_link_file(
                parsed_args.link_partitions)
    if parsed_args.unsupported_ok is not None:
        given['unsupported_ok'] = parsed_args.unsupported_ok
    return given


def _note_steps(command: reach.ConductorCommand,
                variant: admin.VariantInfo) -> None:
    """Say what the cleaning policy proves nothing about, and needs."""
    own = cleaning.SHIPPED - {cleaning.HOST_DRIVER}
    steps = cleaning.steps_of(variant.cleaning_policy)
    if own.issuperset(steps) and cleaning.ABOUT_MEMORY.isdisjoint(steps):
        command.note(
            f'{variant.cleaning_policy} proves nothing about the memory: an '
            f'instance may read what the last one left in its GPU')
    for step in steps:
        if step not in own:
            command.note(
                f'{step} is not one of the cleaning steps of the plugin '
                f'itself ({", ".join(sorted(own))}). A host on which no other '
                f'package has this step cleans and offers no GPU, also none '
                f'that is free now')


def note_pending(command: reach.ConductorCommand,
                 variant: admin.VariantInfo) -> None:
    """Say that the conductor applies a change after the call's end."""
    if variant.hosts_pending:
        command.note(
            f'variant {variant.name} has status {variant.status}: '
            f'{variant.hosts_pending} hosts are left, and gpgpu-conductor '
            f'goes on; see "gpgpu-manage variant show {variant.name}"')


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--dry-run', action='store_true',
        help='create nothing; show how many devices of which hosts would be '
             'cleaned before they are offered')


_PREVIEW = ('Name', 'Result', 'Devices To Clean', 'Hosts')


def _previews(command: reach.ConductorCommand,
              variants: Sequence[admin.VariantInfo]) -> dict[
                  str, tuple[object, ...]]:
    """Return what creation of variants would have cleaned, by their names.

    :returns: each a row of _PREVIEW
    """
    found = command.api.variant_preview(
        gpgpu_context.admin(), variants) if variants else ()
    hosts = {variant.name: {
        preview.host: preview.devices[variant.name] for preview in found
        if variant.name in preview.devices} for variant in variants}
    return {name: (name, 'not created', sum(counts.values()),
                   listing.Cell(counts)) for name, counts in hosts.items()}


class VariantCreate(reach.ConductorCommand, show.ShowOne):
    """Create a variant and apply it to all known devices."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_fields(parser, required=True)
        _add_dry_run(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        wanted = admin.VariantInfo(**{
            'name': parsed_args.name, **_given(parsed_args)})
        if parsed_args.dry_run:
            return _PREVIEW, _previews(self, [wanted])[wanted.name]
        created = self.api.variant_create(gpgpu_context.admin(), wanted)
        note_pending(self, created)
        _note_steps(self, created)
        if not (created.devices or created.hosts_pending):
            self.note(f'variant {created.name} has no device: no host has '
                      f'reported one so far, or all are unmanaged; the '
                      f'column Reason of "gpgpu-manage device list" says why')
        return listing.fields(created)


class VariantList(reach.ConductorCommand, lister.Lister):
    """List the variants."""

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        return listing.rows(
            self.api.variant_list(gpgpu_context.admin()), _COLUMNS)


class VariantShow(reach.ConductorCommand, show.ShowOne):
    """Show a variant."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('name', help='name of the variant')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        return listing.fields(self.api.variant_show(
            gpgpu_context.admin(), parsed_args.name))


class VariantSet(reach.ConductorCommand, show.ShowOne):
    """Change a variant.

    Fields that are not given stay. While one of its devices is assigned,
    its PCI IDs, type and resource class cannot change; all else can, and
    instances keep what they have.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_fields(parser, required=False)
        parser.add_argument(
            '--unset', action='append', choices=sorted(_OPTIONS), default=[],
            metavar='FIELD',
            help='return to the default of a field, repeatable: '
                 + ', '.join(sorted(_OPTIONS)))
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        given = _given(parsed_args)
        if not (given or parsed_args.unset):
            raise base.UsageError(
                'nothing to change: give an option, such as --trait, or '
                '--unset FIELD')
        api, context = self.api, gpgpu_context.admin()
        before = api.variant_show(context, parsed_args.name)
        changed = api.variant_set(context, dataclasses.replace(
            _with_defaults(before, parsed_args), **given), before)
        note_pending(self, changed)
        if 'cleaning_policy' in given:
            _note_steps(self, changed)
        return listing.fields(changed)


class VariantDelete(reach.ConductorCommand, command.Command):
    """Delete a variant if none of its devices is assigned."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('name', help='name of the variant')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        api, context = self.api, gpgpu_context.admin()
        api.variant_delete(context, parsed_args.name)
        with contextlib.suppress(exception.NotFound):
            note_pending(self, api.variant_show(context, parsed_args.name))


class VariantImport(reach.ConductorCommand, lister.Lister):
    """Create the variants of a catalogue; keep those that exist."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('file', nargs='?', type=pathlib.Path,
                            help='catalogue (default: the shipped one)')
        parser.add_argument('--only', action='append', metavar='NAME',
                            help='import only this variant, repeatable')
        _add_dry_run(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Rows:
        wanted = catalogue.read(parsed_args.file or catalogue.shipped())
        if parsed_args.only:
            wanted = catalogue.only(wanted, parsed_args.only)
        api, context = self.api, gpgpu_context.admin()
        known = {info.name: info for info in api.variant_list(context)}
        missing = [admin.VariantInfo(**dataclasses.asdict(variant))
                   for variant in _missing(wanted, known)]
        if parsed_args.dry_run:
            previews = _previews(self, missing)
            return _PREVIEW, [
                previews.get(variant.name, (variant.name, 'unchanged', 0,
                                            listing.Cell({})))
                for variant in wanted]
        created = {variant.name: api.variant_create(context, variant)
                   for variant in missing}
        doubtful = [name for name, info in created.items() if cleaning.doubt(
            info.cleaning_policy, info.vendor, info.device)]
        if doubtful:
            self.note(
                f'GPUs of {", ".join(doubtful)} may wait for another cleaning '
                f'policy before their first instance: "gpgpu-manage variant '
                f'show" says why, and which to choose')
        return ('Name', 'Result', 'Devices'), [
            (variant.name,
             'created' if variant.name in created else 'unchanged',
             (created.get(variant.name) or known[variant.name]).devices)
            for variant in wanted]


def _missing(wanted: Sequence[rules.Variant],
             known: Mapping[str, admin.VariantInfo],
             ) -> list[rules.Variant]:
    """Return the variants to create.

    :raises Conflict: one of them cannot be created; none was
    """
    different = {
        variant.name: fields for variant in wanted if variant.name in known
        and (fields := {
            name.replace('_', ' ') for name in rules.changed(
                known[variant.name].without_devices(), variant)
            if name in (*rules.IDENTITY, 'traits', 'mix_policy')})}
    if different:
        names = ', '.join(sorted(set().union(*different.values())))
        raise exception.Conflict(
            kind='variant', name=', '.join(different),
            reason=f'it exists with another {names}; nothing was imported '
                   f'(change it with "variant set", or import the others '
                   f'with --only)')
    missing = [variant for variant in wanted if variant.name not in known]
    for variant in missing:
        catalogue.check_beside(variant, [
            info.without_devices() for info in known.values()])
    return missing

