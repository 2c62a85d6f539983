#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""``gpgpu-manage variant``: names for devices."""

from __future__ import annotations

import argparse
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
from gpgpu_plugin.cmd import catalogue
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.domain import variant as rules
from gpgpu_plugin.domain.vgpu import capacity
from gpgpu_plugin.objects import admin

_FIELDS = ('vendor', 'device', 'subsystem_vendor', 'subsystem', 'revision',
           'type', 'resource_class', 'mix_policy')
_HELP = {
    'resource_class': 'resource class of a whole card '
                      '(default: CUSTOM_GPU_<name>)',
    'type': 'only: gpu',
    'mix_policy': 'which vGPUs may be on one card together: '
               + ', '.join(capacity.VGPUMixPolicy)}
_COLUMNS = ('name', *_FIELDS, 'traits', 'devices')


def _add_fields(parser: argparse.ArgumentParser, required: bool) -> None:
    parser.add_argument('name', help='name of the variant')
    for name in _FIELDS:
        parser.add_argument(
            '--' + name.replace('_', '-'),
            required=required and name in ('vendor', 'device'),
            help=_HELP.get(name, 'PCI id in hex'))
    parser.add_argument('--trait', action='append', dest='traits',
                        help='trait of its providers, repeatable')


def _given(parsed_args: argparse.Namespace) -> dict[str, typing.Any]:
    given = {name: getattr(parsed_args, name) for name in _FIELDS
             if getattr(parsed_args, name) is not None}
    if parsed_args.traits is not None:
        given['traits'] = tuple(parsed_args.traits)
    return given


class VariantCreate(reach.Command, show.ShowOne):
    """Create a variant and apply it to all known devices."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_fields(parser, required=True)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        created = self.api.variant_create(
            gpgpu_context.admin(),
            admin.VariantInfo(name=parsed_args.name, **_given(parsed_args)))
        if not created.devices:
            self.note(f'variant {created.name} matches no device that a '
                      f'host reported so far')
        return columns.one(created)


class VariantList(reach.Command, lister.Lister):
    """List the variants."""

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        return columns.rows(
            self.api.variant_list(gpgpu_context.admin()), _COLUMNS)


class VariantShow(reach.Command, show.ShowOne):
    """Show a variant."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('name', help='name of the variant')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        return columns.one(self.api.variant_show(
            gpgpu_context.admin(), parsed_args.name))


class VariantSet(reach.Command, show.ShowOne):
    """Change a variant that no instance uses."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_fields(parser, required=False)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        api, context = self.api, gpgpu_context.admin()
        before = api.variant_show(context, parsed_args.name)
        return columns.one(api.variant_set(
            context, dataclasses.replace(before, **_given(parsed_args))))


class VariantDelete(reach.Command, command.Command):
    """Delete a variant that no instance uses; its devices are unmanaged."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('name', help='name of the variant')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.api.variant_delete(gpgpu_context.admin(), parsed_args.name)


class VariantImport(reach.Command, lister.Lister):
    """Create the variants of a catalogue; those that exist stay."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('file', nargs='?', type=pathlib.Path,
                            help='catalogue (default: the shipped one)')
        parser.add_argument('--only', action='append', metavar='NAME',
                            help='only this variant, repeatable')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        wanted = catalogue.read(parsed_args.file or catalogue.shipped())
        if parsed_args.only:
            wanted = catalogue.only(wanted, parsed_args.only)
        api, context = self.api, gpgpu_context.admin()
        known = {each.name: each for each in api.variant_list(context)}
        missing = _missing(wanted, known)
        created = {each.name: api.variant_create(
            context, admin.VariantInfo(**dataclasses.asdict(each)))
            for each in missing}
        return ('Name', 'Result', 'Devices'), [
            (each.name,
             'created' if each.name in created else 'unchanged',
             (created.get(each.name) or known[each.name]).devices)
            for each in wanted]


def _missing(wanted: Sequence[rules.Variant],
             known: Mapping[str, admin.VariantInfo],
             ) -> list[rules.Variant]:
    """Those to create; refuses the whole import before any is created."""
    different = [each.name for each in wanted if each.name in known
                 and each != _to_rules(known[each.name])]
    if different:
        raise exception.Conflict(
            kind='variant', name=', '.join(different),
            reason='it exists with other ids, class or traits; nothing was '
                   'imported (change it by "variant set", or name the '
                   'others by --only)')
    missing = [each for each in wanted if each.name not in known]
    for each in missing:
        catalogue.check_beside(each, [
            _to_rules(other) for other in known.values()])
    return missing


def _to_rules(known: admin.VariantInfo) -> rules.Variant:
    return rules.Variant(**{
        field.name: getattr(known, field.name)
        for field in dataclasses.fields(rules.Variant)})
