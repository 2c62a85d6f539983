# SPDX-License-Identifier: Apache-2.0
"""Pictures of a comparison of policies."""

from __future__ import annotations

import importlib
import pathlib
import typing

if typing.TYPE_CHECKING:
    from bench import simulate

_CURVES = ('random', 'best-fit', 'fgd', 'pack')
_OURS, _PEER = '#1f77b4', '#ff7f0e'


def write(folder: pathlib.Path, figures: simulate.Figures) -> None:
    """Write the two pictures; matplotlib must be installed."""
    # Not at the top: only this needs it, and it is no dependency.
    matplotlib: typing.Any = importlib.import_module('matplotlib')
    matplotlib.use('svg')
    matplotlib.rcParams |= {'svg.hashsalt': 'gpgpu', 'font.size': 9}
    pyplot = importlib.import_module('matplotlib.pyplot')
    _save(_curves(pyplot, figures), folder / 'simulate-load.svg')
    _save(_workloads(pyplot, figures), folder / 'simulate-workloads.svg')


def _save(figure: typing.Any, path: pathlib.Path) -> None:
    figure.tight_layout()
    # Without a date the same figures make the same file.
    figure.savefig(path, metadata={'Date': None, 'Creator': None})


def _curves(pyplot: typing.Any, figures: simulate.Figures) -> typing.Any:
    """Return allocated GPUs by arrived load."""
    figure, axes = pyplot.subplots(figsize=(6.5, 4))
    for policy in _CURVES:
        curve = figures.curve('default', policy)
        axes.plot(list(curve), list(curve.values()), label=policy)
    axes.set(xlim=(80, 130), ylim=(78, 100), xlabel='GPUs requested, % of all',
             ylabel='GPUs allocated, % of all',
             title='List "default", 1,213 hosts')
    axes.grid(alpha=.3)
    axes.legend()
    return figure


def _workloads(pyplot: typing.Any, figures: simulate.Figures) -> typing.Any:
    """Return FGD and the own policy on each workload."""
    names = [workload for workload, policy in figures.cases
             if policy == 'pack']
    figure, axes = pyplot.subplots(figsize=(6.5, .32 * len(names) + 1.2))
    for offset, policy, color in ((-.2, 'pack', _OURS), (.2, 'fgd', _PEER)):
        axes.barh([number + offset for number in range(len(names))],
                  [figures.mean(name, policy) for name in names],
                  height=.38, color=color, label=policy)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlim=(50, 100),
             xlabel='GPUs allocated when 130 % were requested, % of all')
    axes.grid(axis='x', alpha=.3)
    axes.legend(loc='lower center', bbox_to_anchor=(.5, 1), ncols=2)
    return figure
