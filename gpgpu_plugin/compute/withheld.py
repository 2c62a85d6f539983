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
"""Devices that are not free, according to the files of nova-compute.

Commands that run as root read these files without any service. A file that
cannot be read counts as a refusal. A card that no file names counts as free.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignments
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

    :param state_path: ``[gpgpu] state_path`` of nova-compute
    :param card: all functions of the card
    :returns: the address of a function, and the reason; None: the card is
        free as far as the books of the host tell
    """
    functions = {function.id: function for function in card}
    folder = pathlib.Path(state_path)
    try:
        books = sorted(path for path in folder.iterdir()
                       if path.suffix == '.json')
        lost = sorted(path for path in folder.iterdir()
                      if '.json.unreadable-' in path.name)
    except FileNotFoundError:
        # nova-compute has not run with the plugin.
        return None
    except OSError as exc:
        return _unknown(functions, f'{folder} cannot be read ({exc.strerror})',
                        'Correct its permissions')
    for book in books:
        try:
            found = assignments.not_free(book)
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
