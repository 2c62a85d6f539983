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
"""``gpgpu-manage flavor``: extra specs that ask for GPUs."""

from __future__ import annotations

import argparse
import typing

import openstack
from cliff import show

from gpgpu_plugin.cmd import base
from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.domain import request
from gpgpu_plugin import exception

# The first microversion that lets Nova check extra specs.
MICROVERSION = '2.86'


def _gpu(text: str) -> tuple[str, int]:
    name, sign, count = text.rpartition('=')
    if not sign:
        name, count = text, '1'
    if not name or not count.isdecimal() or int(count) < 1:
        raise argparse.ArgumentTypeError(
            f'{text!r}: expected VARIANT=COUNT with a count from 1 on')
    return name, int(count)


def _add_request(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--gpu', action='append', type=_gpu, default=[],
        metavar='VARIANT=COUNT', help='GPUs of a variant, repeatable')
    parser.add_argument('--variant', help='the variant, if it is only one')
    parser.add_argument('--count', type=int, default=1,
                        help='how many of --variant (default: 1)')
    for key, values in request.EXTRA_SPECS.items():
        parser.add_argument(
            '--' + key.partition(':')[2].replace('_', '-'),
            choices=[str(each) for each in values], dest=key)


def render(parsed_args: argparse.Namespace,
           classes: dict[str, str]) -> dict[str, str]:
    """The extra specs of a request.

    :param classes: resource class by variant
    :raises NotFound: no such variant
    :raises Invalid: no GPU is asked for, a variant twice or a wrong count
    """
    gpus = list(parsed_args.gpu)
    if parsed_args.variant:
        gpus.append((parsed_args.variant, parsed_args.count))
    if not gpus:
        raise exception.Invalid(
            field='GPUs', value='none', expected='--variant V --count N, or '
                                                 '--gpu VARIANT=COUNT')
    specs: dict[str, str] = {}
    for name, count in gpus:
        if name not in classes:
            raise exception.NotFound(
                kind='variant',
                name=f'{name} (there are: {", ".join(sorted(classes))})')
        key = f'resources:{classes[name]}'
        if key in specs or count < 1:
            raise exception.Invalid(
                field=f'count of {name}', value=count,
                expected='each variant once, with a count from 1 on')
        specs[key] = str(count)
    for key in request.EXTRA_SPECS:
        value = getattr(parsed_args, key)
        if value is not None:
            specs[key] = value
    return specs


class _Flavor(base.Command, show.ShowOne):
    def _specs(self, parsed_args: argparse.Namespace,
               ) -> tuple[dict[str, str], dict[str, str]]:
        classes = {
            each.name: each.resource_class
            for each in self.app.api.variant_list(gpgpu_context.admin())}
        return render(parsed_args, classes), classes


class FlavorRender(_Flavor):
    """Print the extra specs that ask for GPUs; change nothing."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_request(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        specs, _ = self._specs(parsed_args)
        return tuple(specs), tuple(specs.values())


class FlavorSet(_Flavor):
    """Make a flavor of Nova ask for GPUs, and for no others than these."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('flavor', help='name or id of the flavor')
        _add_request(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> typing.Any:
        specs, classes = self._specs(parsed_args)
        compute = connect(self.app.options.os_cloud).compute
        compute.default_microversion = MICROVERSION
        try:
            flavor = compute.find_flavor(
                parsed_args.flavor, ignore_missing=False,
                get_extra_specs=True)
            compute.create_flavor_extra_specs(flavor, specs)
            ours = {f'resources:{name}' for name in classes.values()}
            for key in flavor.extra_specs or {}:
                if key not in specs and (
                        key in ours or key.startswith('gpgpu:')):
                    compute.delete_flavor_extra_specs_property(flavor, key)
        except openstack.exceptions.SDKException as exc:
            raise exception.Conflict(
                kind='flavor', name=parsed_args.flavor,
                reason=str(exc)) from None
        return tuple(specs), tuple(specs.values())


def connect(cloud: str | None) -> typing.Any:
    """A connection to a cloud of clouds.yaml, or of the OS_ variables."""
    return openstack.connect(cloud=cloud)
