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
"""What the plugin raises into Nova; the class decides what Nova does."""

from __future__ import annotations

from nova import exception
from nova.i18n import _


class GPUClaimDenied(exception.GroupAffinityViolation):
    """A build's claim was denied: Nova tries the next host.

    A subclass of GroupAffinityViolation since Nova reschedules on it without
    counting a failed build of the host.
    """

    msg_fmt = _('%(reason)s')


class GPUDomainStale(exception.NovaException):
    """A domain that was saved is not of the cards that are held now."""

    msg_fmt = _('The domain that was saved for instance %(instance)s has the '
                'PCI devices %(saved)s, while it holds %(held)s now: reboot '
                'it hard, which makes its domain anew')


class GPUOperationUnsupported(exception.Invalid):
    """What cannot be done with an instance that has GPUs."""

    msg_fmt = _('%(operation)s is not supported for instances with GPUs '
                '(%(instance)s)')
