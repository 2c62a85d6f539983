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
import sys
import typing

import yaml
from cliff import command
from cliff import lister
from cliff import show

from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import columns
from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.domain import variant as rules
from gpgpu_plugin import exception
from gpgpu_plugin.objects import view

_FIELDS = ('vendor', 'device', 'subsystem_vendor', 'subsystem', 'revision',
           'type', 'resource_class')
_COLUMNS = ('name', *_FIELDS, 'traits', 'devices')
_CATALOGUE = 'etc/gpgpu/variants.yaml'


def _add_fields(parser: argparse.ArgumentParser, required: bool) -> None:
    parser.add_argument('name', help='name of the variant')
    for name in _FIELDS:
        parser.add_argument(
            '--' + name.replace('_', '-'),
            required=required and name in ('vendor', 'device'),
            help={'resource_class': 'resource class of a whole card '
                                    '(default: CUSTOM_GPU_<name>)',
                  'type': 'only: gpu'}.get(name, 'PCI id in hex'))
    parser.add_argument('--trait', action='append', dest='traits',
                        help='trait of its providers, repeatable')


def _given(parsed_args: argparse.Namespace) -> dict[str, typing.Any]:
    given = {name: getattr(parsed_args, name) for name in _FIELDS
             if getattr(parsed_args, name) is not None}
    if parsed_args.traits is not None:
        given['traits'] = tuple(parsed_args.traits)
    return given


class VariantCreate(base.Command, show.ShowOne):
    """Create a variant and apply it to all known devices."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_fields(parser, required=True)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        created = self.app.api.variant_create(
            gpgpu_context.admin(),
            view.VariantView(name=parsed_args.name, **_given(parsed_args)))
        if not created.devices:
            print(f'gpgpu-manage: variant {created.name} matches no device '
                  f'that a host reported so far', file=sys.stderr)
        return columns.one(created)


class VariantList(base.Command, lister.Lister):
    """List the variants."""

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        return columns.rows(
            self.app.api.variant_list(gpgpu_context.admin()), _COLUMNS)


class VariantShow(base.Command, show.ShowOne):
    """Show a variant."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('name', help='name of the variant')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        return columns.one(self.app.api.variant_show(
            gpgpu_context.admin(), parsed_args.name))


class VariantSet(base.Command, show.ShowOne):
    """Change a variant that no instance uses."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_fields(parser, required=False)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        api, context = self.app.api, gpgpu_context.admin()
        before = api.variant_show(context, parsed_args.name)
        return columns.one(api.variant_set(
            context, dataclasses.replace(before, **_given(parsed_args))))


class VariantDelete(base.Command, command.Command):
    """Delete a variant that no instance uses; its devices are unmanaged."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('name', help='name of the variant')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.app.api.variant_delete(gpgpu_context.admin(), parsed_args.name)


def catalogue_path() -> pathlib.Path:
    """Where the shipped catalogue is: /etc, the installation, the checkout.

    :raises NotFound: in none of them
    """
    folders = (pathlib.Path('/'), pathlib.Path(sys.prefix),
               pathlib.Path(__file__).parents[2])
    for folder in folders:
        if (folder / _CATALOGUE).is_file():
            return folder / _CATALOGUE
    raise exception.NotFound(
        kind='catalogue', name=', '.join(
            str(folder / _CATALOGUE) for folder in folders))


def read_catalogue(path: pathlib.Path) -> list[rules.Variant]:
    """The variants of a file, each checked.

    :raises Invalid: the file has another form, or an entry is wrong
    """
    try:
        entries = yaml.safe_load(path.read_text())['variants']
        return [rules.check(rules.Variant(
            **{**entry, 'traits': tuple(entry.get('traits', ()))}))
            for entry in entries]
    except (OSError, yaml.YAMLError, TypeError, KeyError) as exc:
        raise exception.Invalid(
            field='catalogue', value=str(path),
            expected=f'a YAML mapping with a list "variants": {exc}',
        ) from None


class VariantImport(base.Command, lister.Lister):
    """Create the variants of a catalogue; those that exist stay."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('file', nargs='?', type=pathlib.Path,
                            help='catalogue (default: the shipped one)')
        parser.add_argument('--only', action='append', metavar='NAME',
                            help='only this variant, repeatable')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        wanted = read_catalogue(parsed_args.file or catalogue_path())
        if parsed_args.only:
            _check_only(parsed_args.only, wanted)
            wanted = [each for each in wanted
                      if each.name in parsed_args.only]
        api, context = self.app.api, gpgpu_context.admin()
        known = {each.name: each for each in api.variant_list(context)}
        _check_same(wanted, known)
        result = []
        for each in wanted:
            if each.name in known:
                result.append((each.name, 'unchanged',
                               known[each.name].devices))
                continue
            created = api.variant_create(
                context, view.VariantView(**dataclasses.asdict(each)))
            result.append((each.name, 'created', created.devices))
        return ('Name', 'Result', 'Devices'), result


def _check_only(only: list[str], wanted: list[rules.Variant]) -> None:
    names = {each.name for each in wanted}
    for name in only:
        if name not in names:
            raise exception.NotFound(
                kind='variant of the catalogue',
                name=f'{name} (there are: {", ".join(sorted(names))})')


def _check_same(wanted: list[rules.Variant],
                known: dict[str, view.VariantView]) -> None:
    """Refuse the whole import before anything is created."""
    for each in wanted:
        other = known.get(each.name)
        if other is not None and any(
                getattr(each, name) != getattr(other, name)
                for name in (*_FIELDS, 'traits')):
            raise exception.Conflict(
                kind='variant', name=each.name,
                reason='it exists with other ids, class or traits; nothing '
                       'was imported (change it by "variant set", or leave '
                       'it out by --only)')
