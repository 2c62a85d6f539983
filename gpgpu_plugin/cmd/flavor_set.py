# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage flavor set`` and ``unset``, which alone call Nova."""

from __future__ import annotations

import argparse

import openstack
from cliff import show
from keystoneauth1 import exceptions as keystone_exceptions
from openstack import exceptions as sdk_exceptions
from openstack.compute.v2 import _proxy as proxy

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import flavor
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.domain import naming

# The first microversion that lets Nova check extra specs.
MICROVERSION = '2.86'


class _Change(reach.Command, show.ShowOne):
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


class FlavorSet(_Change, flavor.Flavor):
    """Make a flavor of Nova request these GPUs and no others."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--dry-run', action='store_true',
            help='print the extra specs, and neither change the flavor nor '
                 'call Nova')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Fields:
        specs, classes = self.specs(parsed_args)
        if parsed_args.dry_run:
            return tuple(specs), tuple(specs.values())
        kept, _ = self.change(
            parsed_args.flavor, specs, set(classes.values()))
        shown = {**specs, **kept}
        return tuple(shown), tuple(shown.values())


class FlavorUnset(_Change):
    """Make a flavor of Nova request no GPUs; print what was removed."""

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Fields:
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
