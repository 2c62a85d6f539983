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
"""Errors, grouped by what the caller can do about them.

Every class carries its values as keyword arguments, so that they survive
oslo.messaging: the remote side rebuilds the class from ``kwargs``, while the
message gets a remote traceback appended and must never be parsed.
"""

from __future__ import annotations

import typing


class GpgpuException(Exception):
    """Base of all errors of the plugin.

    :cvar msg_fmt: message with ``%(name)s`` fields; each field must be given
        as a keyword argument, and is kept as ``kwargs[name]``.
    """

    msg_fmt: typing.ClassVar[str] = 'An unknown error of gpgpu_plugin'

    def __init__(self, message: str | None = None, **kwargs: object) -> None:
        self.kwargs = kwargs
        super().__init__(message if message else self.msg_fmt % kwargs)


class Invalid(GpgpuException):
    """The input is wrong; the message says what would be right."""

    # A value may be as long as the file that it is in.
    msg_fmt = '%(field).300s: %(value).300r is not valid: %(expected)s'


class ConfigInvalid(GpgpuException):
    """The configuration is wrong; the service must not start."""

    msg_fmt = 'Option %(option)s: %(reason)s'


class NotFound(GpgpuException):
    """The named thing does not exist."""

    msg_fmt = '%(kind)s %(name)s does not exist'


class Conflict(GpgpuException):
    """The input is well-formed but contradicts what is stored."""

    msg_fmt = '%(kind)s %(name)s: %(reason)s'


class InvalidTransition(Conflict):
    """A device state has no such event (see domain.device)."""

    msg_fmt = 'A device that is %(state)s cannot take the event %(event)s'


class VariantTie(Conflict):
    """Two variants match one device equally well."""

    msg_fmt = ('Variants %(first)s and %(second)s match %(name)s equally '
               'well; make one of them more specific or delete it')


class ClaimDenied(GpgpuException):
    """The conductor refuses a claim; ``reason`` is a domain.request.Reason."""

    msg_fmt = ('Claim of %(instance)s on %(host)s denied: '
               '%(reason)s (%(detail)s)')

    @property
    def reason(self) -> str:
        """The refusal's name, one of domain.request.Reason."""
        return str(self.kwargs.get('reason', 'unknown'))


class ConductorUnavailable(GpgpuException):
    """No gpgpu-conductor answered in time; no change is known."""

    msg_fmt = 'No gpgpu-conductor answered %(method)s within %(timeout)s s'


class BrokerUnavailable(ConductorUnavailable):
    """Not even the broker between us and the conductor can be reached."""

    msg_fmt = 'The message broker at %(hosts)s cannot be reached: %(reason)s'


class HostError(GpgpuException):
    """The machine did not do what it was asked."""

    msg_fmt = '%(path)s: %(reason)s'


class HostNotReady(HostError):
    """The machine is not set up for it; no device was touched, and none is
    to blame."""


class NoDriverCapacity(HostNotReady):
    """The card's driver makes no more of a vGPU type, though there should be
    room."""
