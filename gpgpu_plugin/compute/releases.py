# SPDX-License-Identifier: Apache-2.0
"""Releases and confirmations of a host, until a conductor accepts them.

They are stored in the book before they are sent, so that a crash loses none.
If the book cannot be written, they are sent anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence

from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import assignments
from gpgpu_plugin.objects import claim as claim_obj

LOG = logging.getLogger(__name__)


class Releases:
    """Pending releases and confirmations of one host.

    :param flush: sends all that is pending; raises if that fails
    """

    def __init__(self, host: str, book: assignments.HostAssignments,
                 flush: Callable[[], None]) -> None:
        self._host = host
        self._book = book
        self._flush = flush

    def release(self, uuids: Sequence[str]) -> None:
        """Release assignments now, or later if no conductor answers.

        :raises HostError: no conductor confirmed the release, and it cannot
            be stored; a conductor may have executed it
        """
        what = f'the release of assignments {", ".join(uuids)}'
        # Stored first: a crash from here on loses nothing, and releasing
        # twice does no harm.
        stored = self._book.add_pending(uuids)
        self._send(what)
        if not stored and not set(uuids).isdisjoint(self._book.pending()):
            self._check_written(
                what, lambda: self._book.remove_pending(uuids))

    def confirm(self, confirmation: claim_obj.MigrationConfirmation) -> None:
        """Confirm a migration now, or later if no conductor answers.

        :raises HostError: no conductor accepted the confirmation, and it
            cannot be stored; a conductor may have executed it
        """
        what = f'the confirmation of migration {confirmation.migration_uuid}'
        stored = self._book.add_confirmation(confirmation)
        self._send(what)
        if not stored and confirmation in self._book.confirmations():
            self._check_written(
                what, lambda: self._book.remove_confirmation(confirmation))
        self._book.confirm(confirmation)

    def _send(self, what: str) -> None:
        try:
            self._flush()
        except exception.ConductorUnavailable as exc:
            LOG.warning('%s; %s of %s stays pending', exc, what, self._host)
        except Exception:
            # The conductor failed, for example because its database does
            # not answer. The caller's delete goes on.
            LOG.exception('Cannot send %s of %s; it stays pending', what,
                          self._host)

    def _check_written(self, what: str, forget: Callable[[], None]) -> None:
        """Refuse a request that was neither sent nor stored.

        :param forget: removes the request from the pending ones
        :raises HostError: the book is not on disk
        """
        error = self._book.error()
        if error is None:
            # It was written with another change meanwhile.
            return
        forget()
        raise exception.HostError(
            path=self._host,
            reason=f'{what} was not confirmed by any gpgpu-conductor and '
                   f'cannot be stored in {self._book.path} '
                   f'({error.strerror or error}). The devices may still be '
                   f'assigned. Free space on the file system of this file, or '
                   f'start a gpgpu-conductor, then repeat the operation')
