# SPDX-License-Identifier: Apache-2.0
"""Check of the conductors that are alive."""

from __future__ import annotations

from collections.abc import Sequence

from gpgpu_plugin import version
from gpgpu_plugin.cmd.upgrade import result
from gpgpu_plugin.rpc import ping


def alive(answers: Sequence[ping.PingAnswer]) -> result.Result:
    """Check that conductors answer, and that all have this version."""
    if not answers:
        return result.warning(
            'no gpgpu-conductor answered, so that instances with GPUs find '
            'no host. Start one, unless all are stopped for an upgrade; if '
            'one runs, look for "gpgpu-conductor refused ping" in its log')
    others = [f'{answer.host} (PID {answer.pid}) has {answer.version}'
              for answer in answers if answer.version != version.VERSION]
    if others:
        return result.warning(
            f'this is gpgpu_plugin {version.VERSION}, and '
            f'{result.names(others)}: restart each gpgpu-conductor where the '
            f'package was upgraded, and upgrade the others')
    return result.success(
        f'{len(answers)} answered, all of version {version.VERSION}')
