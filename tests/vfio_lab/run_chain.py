# SPDX-License-Identifier: Apache-2.0
"""A program: the whole chain in the lab, in a machine of its own each time.

    python -m tests.vfio_lab.run_chain [RUNS [NEEDED]]

runs it until it passed NEEDED times (1), at most RUNS times (1), and says how
often it ran and passed. ``run_chain 10 9`` is the requirement.
"""

from __future__ import annotations

import sys

from tests.vfio_lab import machine

COMMAND = ['env', 'OS_NOVA_DISABLE_EVENTLET_PATCHING=1', sys.executable,
           '-u', '-m', 'pytest', '--disable-plugin-autoload',
           '--assert=plain', '-q', '-s', '-p', 'no:cacheprovider', '-p',
           'no:logging', '-W', 'ignore', 'tests/vfio_lab/chain']


def main(runs: int = 1, needed: int = 1) -> int:
    """Run the chain.

    :returns: 0 if it passed as often as needed
    """
    passed = 0
    for ran in range(1, runs + 1):
        passed += machine.run([COMMAND]) == 0
        sys.stdout.write(f'The chain ran {ran} times and passed {passed}\n')
        sys.stdout.flush()
        if passed >= needed or runs - ran < needed - passed:
            break
    return int(passed < needed)


if __name__ == '__main__':
    machine.end_with_sigterm()
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
