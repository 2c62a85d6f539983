# SPDX-License-Identifier: Apache-2.0
"""A map as lines of letters for a terminal, with or without colours."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Iterator

from gpgpu_plugin.gpu_map import mark as mark_mod
from gpgpu_plugin.gpu_map import tree

_OTHER = mark_mod.Mark(symbol='+', colour=mark_mod.GREY, text='others')
"""Mark of all owners or types that have more than one letter."""

BLOCKS = '.\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588'
DIGITS = '.12345678'
"""Levels of a history: none of the GPUs to all of them."""


ILL = '!'
"""Mark of a GPU that is degraded or has failed, behind its letter."""


def render(gpu_map: tree.GPUMap, aspect: mark_mod.Aspect, *,
           colours: bool, levels: str = BLOCKS) -> str:
    """Return the map as text, with one line for each host.

    :param levels: BLOCKS or, for a terminal without them, DIGITS
    """
    drawing = _Drawing(mark_mod.Marks(gpu_map), aspect, colours=colours,
                       levels=levels)
    return '\n'.join(drawing.lines(gpu_map)) + '\n'


class _Drawing:
    def __init__(self, marks: mark_mod.Marks, aspect: mark_mod.Aspect, *,
                 colours: bool, levels: str) -> None:
        self._marks = marks
        self._aspect = aspect
        self._colours = colours
        self._levels = levels

    def lines(self, gpu_map: tree.GPUMap) -> Iterator[str]:
        yield (f'{gpu_map.scope}, {gpu_map.drawn_at}: '
               f'{counted(len(gpu_map.hosts), "host")}, '
               f'{counted(len(gpu_map.gpus), "GPU")}, by {self._aspect}')
        yield from self._legend(gpu_map.gpus)
        if any(host.in_use for host in gpu_map.hosts):
            yield (f'  {self._levels[1]}..{self._levels[-1]} behind a host: '
                   f'GPUs in use in the last {tree.HOURS} hours, '
                   f'{self._levels[-1]} is all')
        yield ''
        width = max((len(host.name) for host in gpu_map.hosts), default=0)
        for host in gpu_map.hosts:
            nodes = '  '.join(map(self._numa_node, host.numa_nodes))
            closed = (f'  silent since {host.heard_at}' * host.is_silent
                      + '  disabled in Nova' * host.is_disabled
                      + '  draining' * host.is_draining)
            yield (f'{host.name:<{width}}  {nodes or "no GPU"}'
                   f'{self._history(host)}{closed}')
            for partitions in host.partitions:
                yield (f'{"":<{width}}  {linked(partitions)}: '
                       f'{states(partitions)}')

    def _history(self, host: tree.HostMap) -> str:
        if not host.in_use or not host.most:
            return ''
        # Only none is level 0, and only all of them the last one.
        highest = len(self._levels) - 1
        return '  ' + ''.join(
            self._levels[0 if not number else max(
                1, number * highest // host.most)] for number in host.in_use)

    def _legend(self, gpus: Iterable[tree.GPUBlock]) -> Iterator[str]:
        others = 0
        for entry in self._marks.legends[self._aspect]:
            if len(entry.mark.symbol) > 1:
                others += 1
                continue
            yield f'  {self._coloured(entry.mark)} {entry.mark.text}: ' + (
                _blocks(entry))
        if others:
            yield f'  {self._coloured(_OTHER)} {others} others'
        ill = collections.Counter(gpu.health for gpu in gpus if gpu.is_ill)
        if ill:
            yield f'  {ILL} behind a letter: ' + ', '.join(
                f'{counted(ill[health], "GPU")} {health}'
                for health in tree.ILL if ill[health])

    def _numa_node(self, node: tree.NUMANode) -> str:
        number = '?' if node.number is None else node.number
        below = ' '.join(''.join(map(self._gpu, bridge.gpus))
                         for bridge in node.bridges)
        return f'N{number}[{below}]'

    def _gpu(self, gpu: tree.GPUBlock) -> str:
        block = self._block(gpu) + (ILL if gpu.is_ill else '')
        if not gpu.vgpus:
            return block
        return f'{block}({self._block_line(gpu.vgpus)})'

    def _block_line(self, blocks: Iterable[tree.Block]) -> str:
        return ''.join(map(self._block, blocks))

    def _block(self, block: tree.Block) -> str:
        return self._coloured(self._marks.of_block(self._aspect, block))

    def _coloured(self, mark: mark_mod.Mark) -> str:
        if len(mark.symbol) > 1:
            mark = _OTHER
        if not self._colours:
            return mark.symbol
        colour = mark.colour
        return (f'\x1b[48;5;{colour.terminal};38;5;'
                f'{colour.terminal_letter}m{mark.symbol}\x1b[0m')


def _blocks(entry: mark_mod.MarkEntry) -> str:
    return ', '.join(
        counted(count, name) for count, name in (
            (entry.gpus, 'GPU'), (entry.vgpus, 'vGPU')) if count)


def linked(partitions: tree.PartitionMap) -> str:
    """Return what link partitions are, such as ``H100, 2 linked GPUs``."""
    return (f'{partitions.variant}, '
            + ('1 GPU' if partitions.size == 1
               else f'{partitions.size} linked GPUs'))


def states(partitions: tree.PartitionMap) -> str:
    """Return the number of link partitions by state, in words."""
    return ', '.join(f'{len(names)} {state}'
                     for state, names in partitions.names.items())


def counted(number: int, name: str) -> str:
    """Return a number of things in words, such as ``2 hosts``."""
    return f'{number:,} {name}{"" if number == 1 else "s"}'
