# SPDX-License-Identifier: Apache-2.0
"""Connection of a command to gpgpu-conductor."""

from __future__ import annotations

import functools
import getpass
import os
import socket

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import configuration
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport


class ConductorCommand(configuration.ConfiguredCommand):
    """Mixin of a cliff command that calls gpgpu-conductor."""

    @functools.cached_property
    def rpc_conf(self) -> cfg.ConfigOpts:
        """Return the configuration that names the transport."""
        return self.configuration(base.CONFIG_FILE, base.NOVA_CONFIG_FILE)

    @functools.cached_property
    def transport(self) -> rpc_transport.Transport:
        """Return the transport to the conductor.

        :raises ConfigInvalid: it reaches no broker
        """
        if self.manage.given_conf is not None:
            return rpc_transport.get_transport(self.manage.given_conf)
        return transport(self.rpc_conf)

    @property
    def api(self) -> conductor_client.ConductorAPI:
        """Return the client of the conductor.

        :raises ConfigInvalid: see transport, or operators have no key here
        """
        return conductor_client.ConductorAPI(
            self.rpc_conf, self.transport,
            caller=gpgpu_context.CallerKind.OPERATOR, name=actor())

    def explain(self, exc: Exception) -> str:
        """Return an error as one line for the operator.

        A conductor of another broker does not answer either.
        """
        if type(exc) is exception.ConductorUnavailable:
            return (f'{message(exc)} and uses the message broker at '
                    f'{rpc_transport.hosts(self.rpc_conf)}, as this command '
                    f'does')
        return message(exc)


def message(exc: Exception) -> str:
    """Return an error, also one of oslo.messaging, as one line."""
    if isinstance(exc, oslo_messaging.RemoteError):
        return (f'gpgpu-conductor failed with {exc.exc_type}: '
                f'{base.first_line(exc.value)}; see its log')
    if isinstance(exc, oslo_messaging.MessagingException):
        return base.first_line(exc)
    return configuration.message(exc)


def transport(conf: cfg.ConfigOpts) -> rpc_transport.Transport:
    """Return a transport whose broker answered.

    :raises ConfigInvalid: the transport reaches no other process, or its
        broker cannot be reached now
    """
    rpc_transport.check_leaves_process(conf)
    _check_configured(conf)
    found = rpc_transport.get_transport(conf)
    try:
        rpc_transport.probe(conf, found)
    except exception.BrokerUnavailable as exc:
        raise exception.ConfigInvalid(
            option='[gpgpu] transport_url', reason=str(exc)) from exc
    return found


def _check_configured(conf: cfg.ConfigOpts) -> None:
    """Refuse to connect if no transport is configured.

    oslo.messaging would connect to a broker on this machine.

    :raises ConfigInvalid: no configuration file was found, and no
        environment variable names a broker
    """
    # The environment may set either option without any file.
    found = conf.get_location('transport_url')
    if (conf.config_file or conf.config_dir or conf.gpgpu.transport_url
            or (found and found.location is not cfg.Locations.opt_default)):
        return
    raise exception.ConfigInvalid(
        option='[gpgpu] transport_url',
        reason=f'it is not set, and neither {base.CONFIG_FILE} nor '
               f'{base.NOVA_CONFIG_FILE} exists; name the configuration '
               f'file with --config-file')


def actor() -> str:
    """Return who runs this command, and where."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container without a user database.
        user = str(os.getuid())
    return f'{user}@{socket.gethostname()}'
