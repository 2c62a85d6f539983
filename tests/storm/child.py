# SPDX-License-Identifier: Apache-2.0
"""Run a program that ends with its parent: tests.storm.child PID COMMAND...

The kernel kills the program when the thread that started it ends, also if
that thread is killed with SIGKILL, and also if the program is stopped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends.

    The setting survives execve, and children do not inherit it.

    :param parent: PID of the parent; if it has ended already, this process
        ends at once
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        raise OSError(ctypes.get_errno(), 'prctl(PR_SET_PDEATHSIG)')
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == '__main__':
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
