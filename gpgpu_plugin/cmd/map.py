# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage map``: a picture of all GPUs, as text or as a page."""

from __future__ import annotations

import argparse
import datetime
import os
import pathlib
import typing

from cliff import command

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import durable
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.gpu_map import mark
from gpgpu_plugin.gpu_map import page
from gpgpu_plugin.gpu_map import text
from gpgpu_plugin.gpu_map import tree
from gpgpu_plugin.objects import history
from gpgpu_plugin.rpc import conductor_client


class Map(reach.ConductorCommand, command.Command):
    """Draw the GPUs of hosts by NUMA node and PCIe switch."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--html', type=pathlib.Path, metavar='FILE',
            help='write a page for browsers to this file, and replace it if '
                 'it exists (default: print letters and colours)')
        parser.add_argument('--host', help='only GPUs of this host')
        parser.add_argument('--variant', help='only GPUs of this variant')
        parser.add_argument(
            '--by', choices=[str(aspect) for aspect in mark.Aspect],
            default=str(mark.Aspect.STATE),
            help='what letters and colours stand for (default: %(default)s); '
                 'the page has a switch for it')
        parser.add_argument(
            '--no-history', dest='history', action='store_false',
            help=f'do not read and draw how many GPUs were in use in the '
                 f'last {tree.HOURS} hours')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if parsed_args.html is not None:
            check_writable(parsed_args.html)
        gpu_map = read(
            self.api, host=parsed_args.host, variant=parsed_args.variant,
            with_history=parsed_args.history)
        out, aspect = self.app.stdout, mark.Aspect(parsed_args.by)
        if parsed_args.html is None:
            out.write(text.render(
                gpu_map, aspect, colours=wants_colours(out),
                levels=levels(out)))
            return
        write(parsed_args.html, page.render(gpu_map, aspect))
        out.write(f'{text.counted(len(gpu_map.gpus), "GPU")} of '
                  f'{text.counted(len(gpu_map.hosts), "host")} drawn in '
                  f'{parsed_args.html}\n')


def read(api: conductor_client.ConductorAPI, *, host: str | None,
         variant: str | None, with_history: bool = True) -> tree.GPUMap:
    """Return the map of what the conductor lists now.

    The lists come in pages, so that the cloud may change between two of them.

    :raises NotFound: no such host or variant
    """
    context = gpgpu_context.admin()
    drawn_at = datetime.datetime.now(datetime.UTC)
    hosts = (api.host_list(context) if host is None
             else (api.host_show(context, host),))
    # First, as it refuses an unknown variant.
    types = api.vgpu_type_list(context, host=host, variant=variant)
    devices = api.device_list(context, host=host, variant=variant)
    return tree.build(
        hosts=hosts, types=types, devices=devices,
        # Only these know which partitions are free.
        groups=api.group_list(context, host=host, variant=variant)
        if any(device.link_partitions for device in devices) else (),
        in_use=tree.in_use(
            api.usage_list(context, history.UsageQuery(
                host=host, variant=variant,
                since=tree.history_since(drawn_at).replace(tzinfo=None))),
            devices, drawn_at) if with_history else None,
        drawn_at=drawn_at.strftime('%Y-%m-%dT%H:%M:%SZ'),
        scope=_scope(host, variant), empty_hosts=variant is None)


def _scope(host: str | None, variant: str | None) -> str:
    return (f'{"GPUs" if variant is None else f"GPUs of variant {variant}"} '
            f'of {"all hosts" if host is None else f"host {host}"}')


def wants_colours(out: typing.TextIO) -> bool:
    """Return whether a stream is a terminal whose user wants colours.

    https://no-color.org
    """
    return (out.isatty() and not os.environ.get('NO_COLOR')
            and os.environ.get('TERM') != 'dumb')


def levels(out: typing.TextIO) -> str:
    """Return the characters of a history that a stream can show."""
    try:
        text.BLOCKS.encode(out.encoding or 'utf-8')
    except UnicodeEncodeError:
        return text.DIGITS
    return text.BLOCKS


def check_writable(path: pathlib.Path) -> None:
    """Refuse what cannot become the file of a page.

    :raises Conflict: there is something else than a file, or its directory
        does not exist
    """
    if path.exists() and not path.is_file():
        raise exception.Conflict(
            kind='file', name=path,
            reason='it is not a regular file; name a file, such as map.html')
    if not path.parent.is_dir():
        raise exception.Conflict(
            kind='file', name=path,
            reason=f'{path.parent} is not a directory; create it first')


def write(path: pathlib.Path, content: str) -> None:
    """Replace a file.

    :raises HostError: it cannot be written
    """
    try:
        # The file that a link leads to, rather than the link.
        durable.replace(path.resolve(), content)
    except OSError as exc:
        raise exception.HostError(
            path=path, reason=f'cannot be written: {exc.strerror}') from None
