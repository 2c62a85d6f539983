# SPDX-License-Identifier: Apache-2.0
"""Operations that need more rights than the user of nova-compute has.

They run in a daemon of oslo.privsep, which nova-compute starts by
``[gpgpu_sys_admin] helper_command``. No other part of the plugin needs root's
rights.
"""

from __future__ import annotations

import errno
import subprocess
import threading
import typing
from collections.abc import Callable

from oslo_privsep import capabilities
from oslo_privsep import comm
from oslo_privsep import daemon
from oslo_privsep import priv_context

T = typing.TypeVar('T')


class HelperUnavailable(PermissionError):
    """The daemon does not start or serves another sysfs; nothing was done."""


class UsedByHost(PermissionError):
    """The host itself uses the device; nothing was done."""


class HelperDied(OSError):
    """The daemon ended during the call; part of it may have been done."""


# Seconds. A driver that never releases a device blocks the unbind call.
TIMEOUT = 60
# Seconds, for a reset of several functions.
RESET_TIMEOUT = 2 * TIMEOUT

# CAP_DAC_OVERRIDE: attributes belong to root; CAP_SYS_ADMIN: VFIO and reset;
# CAP_SYS_MODULE: loading VFIO drivers; CAP_SYS_PTRACE: which files processes
# have open.
sys_admin_pctxt = priv_context.PrivContext(
    'gpgpu_plugin',
    cfg_section='gpgpu_sys_admin',
    pypath=f'{__name__}.sys_admin_pctxt',
    capabilities=[capabilities.CAP_DAC_OVERRIDE,
                  capabilities.CAP_SYS_ADMIN,
                  capabilities.CAP_SYS_MODULE,
                  capabilities.CAP_SYS_PTRACE])

_starting = threading.Lock()


def call(entrypoint: Callable[..., T], *args: object) -> T:
    """Call a function of this package in the daemon.

    :raises TimeoutError: the kernel did not answer in time
    :raises HelperUnavailable: the daemon does not start
    :raises HelperDied: it ended meanwhile, for example since it was killed
    :raises OSError: the kernel refused
    """
    if sys_admin_pctxt.client_mode:
        _start()
    try:
        return entrypoint(*args)
    except comm.PrivsepTimeout:
        if sys_admin_pctxt.client_mode and not _is_connected():
            raise _helper_died() from None
        raise TimeoutError(
            errno.ETIMEDOUT,
            f'the kernel did not answer within {TIMEOUT} s') from None
    except OSError as exc:
        # An error of the kernel has a number. oslo.privsep raises one without,
        # or cannot write to the daemon.
        if exc.errno is None or isinstance(exc, ConnectionError):
            raise _helper_died() from None
        raise


def _helper_died() -> HelperDied:
    return HelperDied(
        errno.EPIPE, 'the privileged helper ended during the call; the log of '
        'the kernel may say why')


def _is_connected() -> bool:
    """Return whether the daemon has been started and is not known to be gone.

    The thread that reads from it ends with an error, without a note in
    "running" and to those that wait, if the kernel reset the connection.
    """
    channel = sys_admin_pctxt.channel
    return bool(channel is not None and channel.running
                and channel.reader_thread.is_alive())


def _start() -> None:
    """Start the daemon if it does not run, or no longer.

    :raises HelperUnavailable: it does not start
    """
    # Another thread must not stop the daemon that this one has started.
    with _starting:
        if _is_connected():
            return
        try:
            sys_admin_pctxt.stop()
            sys_admin_pctxt.start()
        except (daemon.FailedToDropPrivileges, OSError) as exc:
            raise HelperUnavailable(
                errno.EPERM, f'the privileged helper does not start ({exc}); '
                'check [gpgpu_sys_admin] helper_command') from None


def run(*command: str) -> None:
    """Run a program, inside the daemon.

    :raises OSError: it failed, with its output on stderr
    """
    done = subprocess.run(command, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise OSError(errno.EIO, f'{" ".join(command)} failed: '
                      f'{done.stderr.strip() or done.returncode}')


def be_root() -> None:
    """Run privileged functions in this process, which runs as root."""
    sys_admin_pctxt.set_client_mode(False)
