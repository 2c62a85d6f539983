# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage flavor``: extra specs that request GPUs."""

from __future__ import annotations

import argparse

from cliff import show

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import paging
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request

_HELP = {
    'gpgpu:allocation_policy': 'fill GPUs and NUMA nodes in use first '
                               '(depth_first) or spread over all '
                               '(breadth_first), where topology does not '
                               'decide (default: that of the group)',
    'gpgpu:display': 'use the guest\'s first mdev as its display (default: '
                     'off)',
    'gpgpu:numa_policy': 'whether the GPUs must be on the NUMA nodes of the '
                         'guest\'s memory (default: preferred)',
    'gpgpu:topology': 'whether all GPUs of the guest must be on one NUMA '
                      'node, or below one PCIe switch (default: any)',
}


def _gpu(text: str) -> tuple[str, int]:
    name, sign, count = text.rpartition('=')
    if not sign:
        name, count = text, '1'
    if not name or not count.isdecimal() or int(count) < 1:
        raise argparse.ArgumentTypeError(
            f'{text!r}: expected VARIANT=COUNT with a count of at least 1')
    return name, int(count)


def _add_request(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--gpu', action='append', type=_gpu, default=[],
        metavar='VARIANT[/TYPE]=COUNT',
        help='GPUs of a variant, or vGPUs of one of its types, repeatable')
    parser.add_argument('--variant',
                        help='variant, if the flavor has only one')
    parser.add_argument(
        '--vgpu-type', help='request vGPUs of this type (see "vgpu-type '
                            'list") instead of whole GPUs')
    parser.add_argument('--count', type=paging.number, metavar='NUMBER',
                        help='number of GPUs or vGPUs (default: 1)')
    for key, values in request.EXTRA_SPECS.items():
        parser.add_argument(
            '--' + key.partition(':')[2].replace('_', '-'),
            choices=[str(value) for value in values], dest=key,
            help=_HELP[key])


def render(parsed_args: argparse.Namespace,
           classes: dict[str, str]) -> dict[str, str]:
    """Return the extra specs of a request.

    :param classes: resource class by variant, or variant/type
    :raises NotFound: no such variant or type
    :raises Invalid: no GPU is requested, one variant twice, or a count below
        1
    """
    specs: dict[str, str] = {}
    for name, count in _gpus(parsed_args):
        if name not in classes:
            kind = 'vGPU type' if '/' in name else 'variant'
            known = ', '.join(sorted(
                other for other in classes
                if ('/' in other) is ('/' in name))) or 'none'
            raise exception.NotFound(
                kind=kind, name=f'{name} (known: {known})')
        key = f'resources:{classes[name]}'
        if key in specs or count < 1:
            raise exception.Invalid(
                field=f'count of {name}', value=count,
                expected='every variant once, with a count of at least 1')
        specs[key] = str(count)
    for key in request.EXTRA_SPECS:
        value = getattr(parsed_args, key)
        if value is not None:
            specs[key] = value
    return specs


def _gpus(parsed_args: argparse.Namespace) -> list[tuple[str, int]]:
    gpus: list[tuple[str, int]] = list(parsed_args.gpu)
    if parsed_args.variant:
        count = 1 if parsed_args.count is None else parsed_args.count
        name = parsed_args.variant
        if parsed_args.vgpu_type:
            name = f'{name}/{parsed_args.vgpu_type}'
        return [*gpus, (name, count)]
    if not gpus or parsed_args.vgpu_type or parsed_args.count is not None:
        raise exception.Invalid(
            field='GPUs', value='none' if not gpus else
            '--vgpu-type alone' if parsed_args.vgpu_type else
            '--count alone',
            expected='--variant V --count N, or --gpu VARIANT=COUNT')
    return gpus


class Flavor(reach.Command, show.ShowOne):
    """Base of a command that takes a request for GPUs."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_request(parser)
        return parser

    def specs(self, parsed_args: argparse.Namespace,
              ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the extra specs and the resource classes by name.

        They require a host with GPUs if other instances are kept away from
        such hosts.

        :raises NotFound: see render
        :raises Invalid: see render
        """
        api, context = self.api, gpgpu_context.admin()
        classes = {variant.name: variant.resource_class
                   for variant in api.variant_list(context)}
        if parsed_args.vgpu_type or any(
                '/' in name for name, _ in parsed_args.gpu):
            classes |= {
                f'{info.variant}/{info.vgpu_type}': info.resource_class
                for info in api.vgpu_type_list(context)
                if info.vgpu_type != naming.PASSTHROUGH}
        specs = render(parsed_args, classes)
        if self.rpc_conf.gpgpu_conductor.isolation_aggregate:
            specs[naming.GPU_HOST_KEY] = 'required'
        return specs, classes


class FlavorRender(Flavor):
    """Print the extra specs that request GPUs; change nothing."""

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Fields:
        specs, _ = self.specs(parsed_args)
        return tuple(specs), tuple(specs.values())
