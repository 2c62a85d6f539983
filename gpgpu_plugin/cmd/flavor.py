# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage flavor``: extra specs that request GPUs."""

from __future__ import annotations

import argparse

import openstack
from cliff import show
from keystoneauth1 import exceptions as keystone_exceptions
from openstack import exceptions as sdk_exceptions
from openstack.compute.v2 import _proxy as proxy

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import listing
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

_MAX = 1000
"""Number of GPUs and vGPUs that no host has."""


def _gpu(text: str) -> tuple[str, int]:
    name, sign, count = text.rpartition('=')
    if not sign:
        name, count = text, '1'
    if not name or not count.isdecimal() or not 1 <= int(count) <= _MAX:
        raise argparse.ArgumentTypeError(
            f'{text!r}: expected VARIANT=COUNT with a count of 1 to {_MAX}')
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


class Flavor(reach.ConductorCommand, show.ShowOne):
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


# -- ``gpgpu-manage flavor set`` and ``unset``, which alone call Nova.


# The first microversion that lets Nova check extra specs.
MICROVERSION = '2.86'


class _Change(reach.ConductorCommand, show.ShowOne):
    """Base of a command that changes a flavor of Nova."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('flavor', help='name or ID of the flavor')
        return parser

    def change(self, name: str, specs: dict[str, str], classes: set[str],
               ) -> tuple[dict[str, str], dict[str, str]]:
        """Make a flavor request exactly these GPUs; see ``apply``.

        :raises Conflict: Nova cannot be reached, or refuses the change
        """
        try:
            connect = self.manage.connect or openstack.connect
            compute = connect(cloud=self.app.options.os_cloud).compute
            return apply(compute, name, specs, classes)
        except (sdk_exceptions.ConfigException,
                keystone_exceptions.MissingRequiredOptions) as exc:
            raise exception.Conflict(
                kind='flavor', name=name,
                reason=f'{exc}; name a cloud of clouds.yaml with --os-cloud, '
                       f'before "flavor", or with OS_CLOUD') from exc
        except (sdk_exceptions.SDKException,
                keystone_exceptions.ClientException) as exc:
            raise exception.Conflict(
                kind='flavor', name=name, reason=str(exc)) from exc


class FlavorSet(_Change, Flavor):
    """Make a flavor of Nova request these GPUs and no others."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--dry-run', action='store_true',
            help='print the extra specs, and neither change the flavor nor '
                 'call Nova')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        specs, classes = self.specs(parsed_args)
        if parsed_args.dry_run:
            return tuple(specs), tuple(specs.values())
        kept, _ = self.change(
            parsed_args.flavor, specs, set(classes.values()))
        shown = {**specs, **kept}
        return tuple(shown), tuple(shown.values())


class FlavorUnset(_Change):
    """Make a flavor of Nova request no GPUs; print what was removed."""

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        classes = {variant.resource_class for variant
                   in self.api.variant_list(gpgpu_context.admin())}
        _, removed = self.change(parsed_args.flavor, {}, classes)
        if not removed:
            self.note(f'flavor {parsed_args.flavor} requests no GPUs')
        return tuple(removed), tuple(removed.values())


def apply(compute: proxy.Proxy, name: str, specs: dict[str, str],
          classes: set[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Make a flavor request exactly these GPUs; other keys stay.

    So do rules about the GPUs, such as a topology, that were not asked to
    change, and the trait of hosts with GPUs, unless none is requested:
    whether such hosts are isolated, only the conductor's configuration says
    for sure, and the trait does no harm where they are not.

    :param specs: empty: it requests no GPUs
    :param classes: resource classes of all variants
    :returns: rules and traits that stay, and the extra specs that were removed
    :raises Conflict: the flavor still requests other GPUs, too
    """
    flavor = compute.find_flavor(
        name, ignore_missing=False, get_extra_specs=True)
    before = flavor.extra_specs or {}
    if any(before.get(key) != value for key, value in specs.items()):
        # The SDK's own method uses 2.61, where Nova does not check.
        sdk_exceptions.raise_from_response(compute.post(
            f'/flavors/{flavor.id}/os-extra_specs',
            json={'extra_specs': specs}, microversion=MICROVERSION))
    ours = {key: before[key] for key in sorted(before.keys() - specs.keys())
            if _is_ours(key, classes)}
    kept = {key: value for key, value in ours.items()
            if specs and not key.startswith('resources:')}
    removed = {key: value for key, value in ours.items() if key not in kept}
    left = list(removed)
    while left:
        try:
            compute.delete_flavor_extra_specs_property(flavor, left[0])
        except (sdk_exceptions.SDKException,
                keystone_exceptions.ClientException) as exc:
            raise exception.Conflict(
                kind='flavor', name=name,
                reason=f'all else is done, but {", ".join(left)} could not '
                       f'be removed: {exc}; '
                       f'run the command again') from exc
        del left[0]
    return kept, removed


def _is_ours(key: str, classes: set[str]) -> bool:
    scope, _, name = key.partition(':')
    return key == naming.GPU_HOST_KEY or scope == 'gpgpu' or (
        scope == 'resources' and naming.is_own_class(name, classes))
