# SPDX-License-Identifier: Apache-2.0
"""Errors that the plugin raises into Nova, which acts on their class."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator

from nova import exception as nova_exception
from nova.i18n import _
from oslo_log import log as logging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import nova_types
from gpgpu_plugin.domain.allocation import request

LOG = logging.getLogger(__name__)

_REMEDY = _('try again when it is mended')


class GPUClaimDenied(nova_exception.GroupAffinityViolation):
    """A build's claim was denied: Nova tries the next host.

    It is a subclass of GroupAffinityViolation, on which Nova reschedules
    without counting a failed build of the host.
    """

    msg_fmt = _('%(reason)s')


DENIALS = (exception.ClaimDenied, exception.Invalid)
"""Errors of a claim that the conductor refused, or could never grant."""


class GPUAssignmentsEnded(nova_exception.NovaException):
    """An instance lost its devices before its guest was created."""

    msg_fmt = _('The guest of instance %(instance)s was not created: its GPUs '
                'were released while this call waited for another one, such '
                'as a delete')


class GPUOperationFailed(nova_exception.NovaException):
    """A guest was not started, or a migration not confirmed, for its GPUs.

    Tenants read it; the log of nova-compute has the reason.
    """

    msg_fmt = _('The GPUs of instance %(instance)s could not be made ready. '
                'Its operator finds the reason in the log of nova-compute; '
                '%(remedy)s')


class GPUsMissing(exception.GPUPluginException):
    """A guest would have fewer devices than its flavor requests.

    ``remedy`` is what its user can do.
    """

    msg_fmt = ('The guest of instance %(instance)s was not started on '
               '%(host)s, where it lacks %(lacking)s: %(reason)s; %(remedy)s')


class GPUDomainStale(exception.GPUPluginException):
    """A saved domain does not have the devices that are assigned now."""

    msg_fmt = ('The domain that was saved for instance %(instance)s has PCI '
               'devices %(saved)s, but %(assigned)s are assigned to it now; '
               '%(remedy)s')


class GPUOperationUnsupported(nova_exception.Invalid):
    """An operation that an instance with GPUs does not support."""

    msg_fmt = _('%(operation)s is not supported for instances with GPUs '
                '(%(instance)s)')


class Build(enum.StrEnum):
    """Operation for which Nova creates a guest."""

    NEW = 'new'
    REBUILD = 'rebuild'
    EVACUATION = 'evacuation'


@contextlib.contextmanager
def explained(instance: nova_types.Instance) -> Iterator[None]:
    """Translate the plugin's errors in an operation on an instance.

    Of an error that is not Nova's own, users read the name of its class.
    """
    try:
        yield
    except exception.GPUPluginException as exc:
        LOG.error('Cannot make the GPUs ready: %s', reason(exc),
                  instance=instance)
        raise GPUOperationFailed(
            instance=instance.uuid,
            remedy=exc.kwargs.get('remedy', _REMEDY)) from exc


def public(exc: Exception) -> str:
    """Return what tenants may read of an error: no host, path or capacity.

    Administrators find the whole reason in the log and in the action's event.
    """
    if isinstance(exc, exception.ClaimDenied):
        return f'the claim of GPUs was denied: {exc.reason}'
    # These name what the user or the flavor requests.
    if isinstance(exc, (exception.Invalid, nova_exception.NovaException)):
        return reason(exc)
    return ('the GPUs could not be made ready; the log of nova-compute has '
            'the reason')


def reason(exc: Exception) -> str:
    """Return the whole reason of an error, in one line."""
    if isinstance(exc, exception.Invalid):
        return f'{request.Reason.EXTRA_SPEC_INVALID}: {exc}'
    if isinstance(exc, exception.GPUPluginException):
        # The message of an exception from RPC has a traceback appended.
        return exc.msg_fmt % exc.kwargs
    return str(exc)
