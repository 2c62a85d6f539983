# SPDX-License-Identifier: Apache-2.0
"""gpgpu-conductor, the only process that uses the plugin's database.

SIGTERM and SIGINT end it after the calls under way, SIGHUP makes it read its
configuration again, and SIGUSR2 writes a report of its threads and options.
systemd is notified when it serves.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from collections.abc import Sequence

from oslo_config import cfg
from oslo_log import log as logging
from oslo_reports import guru_meditation_report
from oslo_reports import opts as report_opts
from oslo_service import systemd

from gpgpu_plugin import exception
from gpgpu_plugin import version
from gpgpu_plugin.cmd import configuration
from gpgpu_plugin.cmd import db
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.conductor import service
from gpgpu_plugin.conductor import threads
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.rpc import transport as rpc_transport

LOG = logging.getLogger(__name__)


class _Version:
    """Name and version of the program, as oslo.reports reads them."""

    def vendor_string(self) -> str:
        """Return who made the program."""
        return 'OpenStack'

    def product_string(self) -> str:
        """Return the name of the program."""
        return 'gpgpu-conductor'

    def version_string_with_package(self) -> str:
        """Return the version of the program."""
        return version.VERSION


def read(conf: cfg.ConfigOpts, argv: Sequence[str]) -> None:
    """Read the configuration of this process.

    :raises ConfigInvalid: an option is wrong, there is no such SQLite file,
        or no other process could reach this one
    :raises HostError: a file cannot be read
    """
    configuration.check_arguments(argv)
    logging.register_options(conf)
    report_opts.set_defaults(conf)
    conf_gpgpu.register_opts(conf)
    api.register_opts(conf)
    conf(list(argv), project='gpgpu', prog='gpgpu-conductor',
         version=version.VERSION)
    threads.set_defaults(conf)
    conf_gpgpu.check(conf)
    threads.check_threads(conf)
    rpc_transport.check_leaves_process(conf)
    db.check_file(conf)


def _probe(conf: cfg.ConfigOpts) -> None:
    """Check that the broker answers.

    oslo.messaging waits for it, and logs neither its name nor who waits.

    :raises BrokerUnavailable: it does not
    """
    transport = rpc_transport.get_transport(conf)
    try:
        rpc_transport.probe(conf, transport)
    finally:
        transport.cleanup()


def _warn_of_broker(conf: cfg.ConfigOpts) -> None:
    try:
        _probe(conf)
        return
    except exception.BrokerUnavailable as exc:
        reason = str(exc)
    # Not where it is caught: oslo.log would add the error once more.
    LOG.warning('%s; gpgpu-conductor serves as soon as the broker answers. If '
                'it should answer, check [gpgpu] transport_url', reason)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    argv = sys.argv[1:] if argv is None else argv
    # Its default would end the process if systemd reloads it too early.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Until it serves, there is nothing to finish.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    conf = cfg.CONF
    try:
        read(conf, argv)
        logging.setup(conf, 'gpgpu')
        conductor = service.ConductorService(conf)
        _warn_of_broker(conf)
        conductor.start()
    # Whatever is wrong is one line for the operator: a database that is away,
    # a driver that is not installed, an option that is wrong.
    except Exception as exc:  # noqa: BLE001
        sys.stderr.write(f'gpgpu-conductor: {reach.message(exc)}\n')
        return 1
    received = _receive(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    guru_meditation_report.TextGuruMeditation.setup_autorun(
        _Version(), conf=conf)
    service.freeze_loaded()
    LOG.info('gpgpu-conductor %s serves', version.VERSION)
    systemd.notify()
    while next(received) == signal.SIGHUP:
        replaced = _reload(conf, argv, conductor)
        if replaced is None:
            return 1
        conductor = replaced
    conductor.stop()
    return 0


def _receive(*numbers: int) -> Iterator[int]:
    """Catch signals from now on, and return them as they come.

    Python runs a handler when the main thread goes on. If a signal comes while
    that thread is about to wait, or interrupts another thread, only a socket
    to which the interpreter writes at once ends the wait.
    """
    written, read = socket.socketpair()
    written.setblocking(False)
    signal.set_wakeup_fd(written.fileno())
    for number in numbers:
        signal.signal(number, lambda _number, _frame: None)

    def wait() -> Iterator[int]:
        # What is open here stays open as long as somebody waits.
        with written, read:
            while True:
                yield from (number for number in read.recv(1)
                            if number in numbers)
    return wait()


def _reload(conf: cfg.ConfigOpts, argv: Sequence[str],
            running: service.ConductorService,
            ) -> service.ConductorService | None:
    """Replace the conductor by one with the configuration files as they are.

    :returns: the new conductor, which serves; the running one if the
        configuration is wrong; None if no conductor serves any more
    """
    try:
        read(cfg.ConfigOpts(), argv)
        conf.reload_config_files()
        threads.set_defaults(conf)
        logging.setup(conf, 'gpgpu')
        _probe(conf)
        conductor = service.ConductorService(conf)
    # Whatever it is: calls are served as before.
    except Exception as exc:  # noqa: BLE001
        LOG.error('The configuration was not reloaded: %s. The conductor '
                  'serves as before; correct it and send SIGHUP again',
                  reach.message(exc))
        return running
    try:
        conductor.start(replaced=running)
    # Whatever it is: systemd starts the program again.
    except Exception as exc:  # noqa: BLE001
        LOG.error('gpgpu-conductor ends, since it cannot start with the '
                  'reloaded configuration: %s', reach.message(exc))
        running.stop()
        return None
    LOG.info('gpgpu-conductor %s serves with the reloaded configuration',
             version.VERSION)
    return conductor


if __name__ == '__main__':
    sys.exit(main())
