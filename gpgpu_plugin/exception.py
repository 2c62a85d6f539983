# SPDX-License-Identifier: Apache-2.0
"""Errors, grouped by what the caller can do about them.

Every error keeps its values as keyword arguments, so that they survive
oslo.messaging: the caller's side rebuilds the class from ``kwargs``. The
message gets the remote traceback appended and must never be parsed.
"""

from __future__ import annotations

import typing


class GPUPluginException(Exception):
    """Base of all errors of the plugin.

    :cvar msg_fmt: message with ``%(name)s`` fields; every field must be given
        as a keyword argument, which is stored in ``kwargs[name]``
    """

    msg_fmt: typing.ClassVar[str] = 'An unknown error of gpgpu_plugin'

    def __init__(self, message: str | None = None, **kwargs: object) -> None:
        self.kwargs = kwargs
        super().__init__(message if message else self.msg_fmt % kwargs)


class Invalid(GPUPluginException):
    """The input is malformed; the message says what is expected."""

    # A value may be as long as the file that contains it.
    msg_fmt = '%(field).300s: %(value).300r is not valid: %(expected)s'


class ConfigInvalid(GPUPluginException):
    """The configuration is wrong, so the service does not start."""

    msg_fmt = 'Option %(option)s: %(reason)s'


class NotFound(GPUPluginException):
    """The object does not exist."""

    msg_fmt = '%(kind)s %(name)s does not exist'


class Conflict(GPUPluginException):
    """The request is well-formed but contradicts the stored state."""

    msg_fmt = '%(kind)s %(name)s: %(reason)s'


class InvalidTransition(Conflict):
    """The device's state has no such event; see domain.device.

    ``state`` and ``event`` are for programs; the message says what cannot be
    done to the device, and what can.
    """


class VariantTie(Conflict):
    """Two variants match one device equally well."""

    msg_fmt = ('Variants %(first)s and %(second)s match %(name)s equally '
               'well; make one of them more specific, or delete one')


class ClaimDenied(GPUPluginException):
    """The conductor denied a claim.

    ``reason`` is a domain.allocation.request.Reason.
    """

    msg_fmt = ('Claim of %(instance)s on %(host)s denied: '
               '%(reason)s (%(detail)s)')

    @property
    def reason(self) -> str:
        """Name of the refusal, a domain.allocation.request.Reason."""
        return str(self.kwargs.get('reason', 'unknown'))


class Fenced(GPUPluginException):
    """Another nova-compute speaks for the host; this call changed nothing."""

    msg_fmt = ('nova-compute of host %(host)s is fenced: %(reason)s')


class SessionOutdated(GPUPluginException):
    """A newer session of the host began since the one that was expected.

    ``kwargs['current']`` is its number.
    """

    msg_fmt = ('Host %(host)s has session %(current)s, not %(expected)s: '
               'another start of nova-compute was faster')


class SessionLost(GPUPluginException):
    """The conductor's database does not know the session.

    The host was deleted in it, or it was restored from a backup. The host
    begins a new session and reports what it has.
    """

    msg_fmt = ('The conductor does not know session %(session)s of host '
               '%(host)s: %(reason)s')


class ConductorUnavailable(GPUPluginException):
    """No gpgpu-conductor answered in time.

    It is unknown whether the call was executed.
    """

    msg_fmt = ('No gpgpu-conductor answered %(method)s within %(timeout)s s; '
               'check that one is running')


class NoSession(ConductorUnavailable):
    """No conductor has given this start of nova-compute a session.

    The call was not sent. Nothing is wrong with a device or the host.
    """

    msg_fmt = 'nova-compute of host %(host)s has no session: %(reason)s'


class RequestExpired(ConductorUnavailable):
    """A call was handled when its caller had given up; nothing was done."""

    msg_fmt = ('%(method)s for %(subject)s was not executed: its caller waits '
               'for %(wanted)s s, and %(waited)s s have passed')


class AnswerRefused(ConductorUnavailable):
    """An answer that gpgpu-conductor did not sign counts as none."""

    msg_fmt = 'The answer to %(method)s counts as none: %(reason)s'


class CallerRefused(ConductorUnavailable):
    """A call is not signed by somebody who may make it; nothing was done.

    A refusal itself has no signature: to its caller it is no answer either.
    It succeeds as soon as the caller has a key that the conductor knows.
    """

    msg_fmt = 'gpgpu-conductor refused %(method)s: %(reason)s'


class MessageRefused(CallerRefused):
    """A message to a host is not signed by a conductor; nothing was done."""

    msg_fmt = 'nova-compute refused message %(method)s: %(reason)s'


class NotOwner(GPUPluginException):
    """A host asked for a change of what is another host's; nothing was done.

    It does not help to repeat the call.
    """

    msg_fmt = ('gpgpu-conductor refused %(change)s: host %(host)s does not '
               'own it')


class DatabaseBusy(ConductorUnavailable):
    """The database exceeded a time limit; nothing was changed."""

    msg_fmt = ('The database did not answer gpgpu-conductor in time, probably '
               'because another transaction holds a lock; nothing was '
               'changed: %(reason)s')


class DatabaseUnavailable(ConductorUnavailable):
    """The conductor's connection to the database failed, or is read-only.

    It is unknown whether the call was executed.
    """

    msg_fmt = ('gpgpu-conductor lost its connection to the database, or the '
               'database is read-only: %(reason)s')


class BrokerUnavailable(ConductorUnavailable):
    """The message broker cannot be reached; the call was not sent."""

    msg_fmt = 'The message broker at %(hosts)s cannot be reached: %(reason)s'


class HostError(GPUPluginException):
    """The kernel, a driver or a program of the host failed or refused."""

    msg_fmt = '%(path)s: %(reason)s'


class HostNotReady(HostError):
    """The host is not set up for the operation.

    No device was touched, and none is defective.
    """


class HalfPrepared(HostNotReady):
    """The host was no longer set up after a part of an operation.

    Its privileged helper may have ended meanwhile. The device may have been
    changed, and is not defective.
    """


class NoDriverCapacity(HostNotReady):
    """The GPU's driver offers no instance of a vGPU type.

    The conductor's data said that there was capacity.
    """
