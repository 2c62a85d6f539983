# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage flavor``: extra specs that request GPUs."""

from __future__ import annotations

import argparse

from cliff import show

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
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
                      'node (same_numa), below one PCIe switch (same_switch) '
                      'or exactly one link partition (linked) (default: any)',
}

_MOST = 1000
"""Number of GPUs and vGPUs that no host has."""


def _gpu(text: str) -> tuple[str, int]:
    name, sign, count = text.rpartition('=')
    if not sign:
        name, count = text, '1'
    if not name or not count.isdecimal() or not 1 <= int(count) <= _MOST:
        raise argparse.ArgumentTypeError(
            f'{text!r}: expected VARIANT=COUNT with a count of 1 to {_MOST}')
    return name, int(count)


def _add_request(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--gpu', action='append', type=_gpu, required=True,
        metavar='VARIANT[/TYPE]=COUNT',
        help='GPUs of a variant, or vGPUs of one of its types (see '
             '"vgpu-type list"), repeatable')
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
    :raises Invalid: a variant or type is requested twice
    """
    specs: dict[str, str] = {}
    for name, count in parsed_args.gpu:
        if name not in classes:
            kind = 'vGPU type' if '/' in name else 'variant'
            known = ', '.join(sorted(
                other for other in classes
                if ('/' in other) is ('/' in name))) or 'none'
            raise exception.NotFound(
                kind=kind, name=f'{name} (known: {known})')
        key = f'resources:{classes[name]}'
        if key in specs:
            raise exception.Invalid(
                field='--gpu', value=name, expected='each variant or type '
                                                    'once')
        specs[key] = str(count)
    for key in request.EXTRA_SPECS:
        value = getattr(parsed_args, key)
        if value is not None:
            specs[key] = value
    return specs


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
        if any('/' in name for name, _ in parsed_args.gpu):
            classes |= {
                f'{info.variant}/{info.vgpu_type}': info.resource_class
                for info in api.vgpu_type_list(context)
                if info.vgpu_type != naming.PASSTHROUGH}
        specs = render(parsed_args, classes)
        if self.rpc_conf.gpgpu_conductor.isolation_aggregate:
            specs[naming.GPU_HOST_KEY] = 'required'
        return specs, classes
