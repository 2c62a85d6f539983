# SPDX-License-Identifier: Apache-2.0
"""Devices that are not free, according to the files of nova-compute.

Commands that run as root read these files without any service. A file that
cannot be read counts as a refusal. A card that no file names counts as free.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignment_file
from gpgpu_plugin.domain import pci
from gpgpu_plugin.host.vfio import baseline

_NEXT = ('Wait until "gpgpu-manage device list --host {host}" shows it as '
         'available, or release it with "gpgpu-manage device release" if it '
         'is quarantined; then repeat the command')
_UNKNOWN = ('it is unknown whether it is free: {reason}. {remedy}, then '
            'repeat the command')


def refusal(state_path: str,
            card: Iterable[pci.PCIFunction]) -> tuple[str, str] | None:
    """Return why no driver of the host may get a card.

    :param state_path: ``[gpgpu_compute] state_path`` of nova-compute
    :param card: all functions of the card
    :returns: the address of a function, and the reason; None: the card is
        free as far as the books of the host tell
    """
    functions = {function.id: function for function in card}
    folder = pathlib.Path(state_path)
    try:
        books, lost = _books(folder)
    except FileNotFoundError:
        # nova-compute has not run with the plugin.
        return None
    except OSError as exc:
        return _unknown(functions, f'{folder} cannot be read ({exc.strerror})',
                        'Correct its permissions')
    for book in books:
        try:
            found = assignment_file.not_free(book)
        except (OSError, exception.Invalid) as exc:
            return _unknown(functions, f'{book} cannot be read ({exc})',
                            'Start nova-compute, which writes it again')
        for stable_id, reason in found.items():
            function = functions.get(_on(stable_id))
            if function is not None:
                return function.address, (
                    f'on host {book.stem}, {reason}. '
                    + _NEXT.format(host=book.stem))
    return _lost(functions, folder, books, lost)


def _books(folder: pathlib.Path,
           ) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Return the books in a folder, and those that could not be read.

    :raises OSError: the folder cannot be read
    """
    files = sorted(folder.iterdir())
    return ([path for path in files if path.suffix == '.json'],
            [path for path in files if '.json.unreadable-' in path.name])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Users:
    """Instances that use devices of this machine.

    :ivar instances: UUIDs by the id of a function; a GPU has also those of
        its vGPUs
    :ivar doubt: why there may be more; None: there are none
    """

    instances: Mapping[str, Sequence[str]]
    doubt: str | None


def users(state_path: str) -> Users:
    """Return which instances use devices, as the books of the host tell.

    :param state_path: ``[gpgpu_compute] state_path`` of nova-compute
    """
    try:
        books, lost = _books(pathlib.Path(state_path))
    except OSError as exc:
        return Users(instances={}, doubt=str(exc))
    doubt = None if books else f'{state_path} has no record of assignments'
    if lost:
        doubt = f'{lost[0]} could not be read'
    found: dict[str, set[str]] = collections.defaultdict(set)
    for book in books:
        try:
            of_book = assignment_file.instances(book)
        except (OSError, exception.Invalid) as exc:
            doubt = f'{book} cannot be read ({exc})'
            continue
        for stable_id, instance in of_book.items():
            found[pci.function_id_of(stable_id)].add(instance)
            found[_on(stable_id)].add(instance)
    return Users(instances={name: sorted(uuids)
                            for name, uuids in found.items()}, doubt=doubt)


def _lost(functions: dict[str, pci.PCIFunction], folder: pathlib.Path,
          books: list[pathlib.Path],
          lost: list[pathlib.Path]) -> tuple[str, str] | None:
    """Return why a card that had a guest may not be free."""
    baselines = baseline.Baselines.of_host(str(folder))
    if not any(map(baselines.has, functions)):
        return None
    if lost:
        return _unknown(
            functions, f'it had a guest, and {lost[0]} could not be read',
            f'Remove that file if "gpgpu-manage device list" shows the '
            f'device of host {lost[0].name.partition(".json")[0]} as '
            f'available')
    if not books:
        return _unknown(
            functions, f'it had a guest, and {folder} has no record of '
            f'assignments',
            'Start nova-compute, which writes it')
    return None


def _on(stable_id: str) -> str:
    """Return the stable id of the physical function that a device is on."""
    return pci.pf_of(stable_id) or pci.function_id_of(stable_id)


def _unknown(functions: dict[str, pci.PCIFunction], reason: str,
             remedy: str) -> tuple[str, str]:
    address = min(function.address for function in functions.values())
    return address, _UNKNOWN.format(reason=reason, remedy=remedy)
