# SPDX-License-Identifier: Apache-2.0
"""Baselines: configuration of PCI functions before a guest got them.

Each function has one small file, written when a device is prepared and
compared when it is cleaned. It must survive a restart of nova-compute, a
reboot of the host and a power cut.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from collections.abc import Mapping

from gpgpu_plugin import exception
from gpgpu_plugin import versioned_file

VERSION = 1
"""Version of the files' format."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Baseline:
    """Content of a file.

    :ivar assignment: UUID of the assignment before which it was recorded;
        empty: there was none
    :ivar shape: the function's identity and layout, by name; None: only notes
        were made
    :ivar notes: what a backend has to know until the device is clean
    :ivar firmware: hashes of the function's firmware, by name, from before
        its first guest, or as an operator accepted it; None: it was not read
    :ivar reported_to: the cleaning to which the differences were reported
    :ivar lost: whether the shape was recorded after the guest had begun, as
        there was none from before it
    """

    assignment: str
    shape: dict[str, str] | None
    notes: dict[str, str | None] = dataclasses.field(default_factory=dict)
    firmware: dict[str, str] | None = None
    reported_to: str | None = None
    lost: bool = False


class Baselines:
    """The baselines of a host.

    A file that cannot be read is never written over: its device is not
    prepared, and fails its cleaning, until an operator has removed the file.

    :param folder: created when the first baseline is recorded
    """

    def __init__(self, folder: str) -> None:
        self._folder = pathlib.Path(folder)

    @classmethod
    def of_host(cls, state_path: str) -> Baselines:
        """Return the baselines of a host.

        :param state_path: ``[gpgpu_compute] state_path``
        """
        return cls(f'{state_path}/cards')

    def has(self, stable_id: str) -> bool:
        """Return whether a function has a baseline, readable or not."""
        return self._path(stable_id).exists()

    def record(self, stable_id: str, assignment: str,
               shape: Mapping[str, str],
               notes: Mapping[str, str | None] | None = None, *,
               had_guest: bool = False) -> None:
        """Record the configuration of a function before an assignment.

        A baseline of the same assignment stays, as its guest may have
        changed the function since.

        :param notes: what a backend has to know until it is clean
        :param had_guest: whether its guest may have had it already: if there
            is no baseline of the assignment, it is lost
        :raises HostError: the baseline that is there cannot be read
        :raises HostNotReady: the new one cannot be written
        """
        known = self._load(stable_id)
        if (known is None or known.assignment != assignment
                or known.shape is None):
            self._save(stable_id, _Baseline(
                assignment=assignment, shape=dict(shape),
                notes=dict(notes or {}),
                firmware=known.firmware if known else None,
                lost=had_guest))

    def record_firmware(self, stable_id: str,
                        read: Callable[[], Mapping[str, str]]) -> None:
        """Record the firmware of a function that has a baseline, once.

        That of before its first guest stays: later ones are compared with it.
        If the baseline is lost, that of now is not the one from before.

        :param read: returns hashes by name
        :raises HostError: the baseline or the firmware cannot be read
        :raises HostNotReady: the baseline cannot be written
        """
        known = self._load(stable_id)
        if (known is not None and known.firmware is None
                and not known.lost):
            self._save(stable_id, dataclasses.replace(
                known, firmware=dict(read())))

    def note(self, stable_id: str, notes: Mapping[str, str | None]) -> None:
        """Replace the notes of the last preparation, if there was one.

        :raises HostError: the baseline cannot be read
        :raises HostNotReady: it cannot be written
        """
        known = self._load(stable_id)
        if known is not None and known.notes != notes:
            self._save(stable_id, dataclasses.replace(
                known, notes=dict(notes)))

    def note_driver(self, stable_id: str, driver: str | None) -> None:
        """Note the driver that a function has before a cleaning.

        None may be due to a reboot, so it is noted if nothing else is.

        :raises HostError: the baseline that is there cannot be read
        :raises HostNotReady: the note cannot be written
        """
        known = self._load(stable_id) or _Baseline(assignment='', shape=None)
        if driver is not None or 'driver' not in known.notes:
            self._save(stable_id, dataclasses.replace(
                known, notes={'driver': driver}))

    def renew(self, stable_id: str) -> None:
        """Forget how a function was, as another one is in its place.

        The notes stay: they are what has to be undone now.

        :raises HostError: the baseline that is there cannot be read
        :raises HostNotReady: it cannot be written
        """
        known = self._load(stable_id)
        if known is not None:
            self._save(stable_id, _Baseline(
                assignment=known.assignment, shape=None, notes=known.notes))

    def notes(self, stable_id: str,
              assignment: str | None = None) -> dict[str, str | None]:
        """Return the notes of the last preparation.

        :param assignment: none are returned if it was for another one; None:
            for any, since a restored database does not know it
        :raises HostError: the baseline cannot be read
        """
        known = self._load(stable_id)
        if known is None or assignment not in (None, known.assignment):
            return {}
        return dict(known.notes)

    def differences(self, stable_id: str, cleaning: str,
                    shape: Mapping[str, str],
                    firmware: Mapping[str, str] | None = None, *,
                    had_guest: bool) -> list[str]:
        """Return the differences from the baseline, one phrase per field.

        Differences are returned to one cleaning only, however often it begins.
        A later cleaning was requested by an operator, who accepted the device
        as it is. A field that the baseline does not have is no difference.

        :param firmware: that of the function now; None: it is not compared
        :param had_guest: whether a guest had the function: if there is no
            baseline, nobody knows what it has changed. Else the present
            configuration becomes the baseline
        :raises HostError: the baseline cannot be read
        :raises HostNotReady: it cannot be written
        """
        known = self._load(stable_id)
        if known is None or known.shape is None:
            known = dataclasses.replace(
                known or _Baseline(assignment='', shape=None),
                shape=dict(shape), lost=had_guest, firmware=(
                    None if firmware is None else dict(firmware)))
            if not had_guest:
                self._save(stable_id, known)
        differences = _differences(known, shape, firmware)
        if not differences:
            return []
        if known.reported_to not in (None, cleaning):
            self._save(stable_id, dataclasses.replace(
                known, shape=dict(shape), firmware=(
                    known.firmware if firmware is None else dict(firmware)),
                reported_to=None, lost=False))
            return []
        self._save(stable_id, dataclasses.replace(
            known, reported_to=cleaning))
        return differences

    def _load(self, stable_id: str) -> _Baseline | None:
        path = self._path(stable_id)
        try:
            return versioned_file.read_versioned(path, _Baseline, VERSION)
        except (OSError, exception.Invalid) as exc:
            raise exception.HostError(
                path=str(path),
                reason=f'the baseline of {stable_id} cannot be read: {exc}. '
                       f'Check the device, remove the file and release the '
                       f'device. If its card is not designated, run '
                       f'gpgpu-host undesignate after the cleaning to '
                       f'bind its own driver again') from None

    def _save(self, stable_id: str, baseline: _Baseline) -> None:
        path = self._path(stable_id)
        try:
            versioned_file.write_versioned(path, baseline, VERSION)
        except OSError as exc:
            raise exception.HostNotReady(
                path=str(path), reason=f'cannot be written: {exc.strerror}',
            ) from None

    def _path(self, stable_id: str) -> pathlib.Path:
        return self._folder / f'{stable_id.strip("/").replace("/", "_")}.json'


def _differences(known: _Baseline, shape: Mapping[str, str],
                 firmware: Mapping[str, str] | None) -> list[str]:
    lost = ['it is lost, so nobody knows what the guest has changed'
            ] if known.lost else []
    return lost + _changes(known.shape, shape) + (
        [] if firmware is None else _changes(known.firmware, firmware))


def _changes(before: Mapping[str, str] | None,
             now: Mapping[str, str]) -> list[str]:
    return [f'{name} was {value or "none"}, is {now.get(name) or "none"}'
            for name, value in sorted((before or {}).items())
            if value != now.get(name)]
