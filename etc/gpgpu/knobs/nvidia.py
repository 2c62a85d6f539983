#!/usr/bin/python3 -I
# SPDX-License-Identifier: Apache-2.0
"""Read and reset settings in the firmware of an NVIDIA GPU, for step "knobs".

It runs NVIDIA's gpu-admin-tools (https://github.com/NVIDIA/gpu-admin-tools),
which need root. Install both where only root can write, allow the user of
nova-compute to run this file with sudo, and set [gpgpu_compute] knobs_command.
The page "Cleaning between tenants" of the administrator's documentation has
the commands.

It was written after the source of gpu-admin-tools v2026.02.24, and was never
run on a GPU.
"""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

TOOL = '/opt/gpu-admin-tools/nvidia_gpu_tools.py'
SYSFS = '/sys'

# Of each call of the tool, which waits for a GPU for up to 30 s.
SECONDS = 40

ADDRESS = r'[0-9a-f]{4,16}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]'

# Option of the tool, and what it prints then after the name of the GPU.
QUERIES = {
    'ecc': ('--query-ecc-state', r'ECC is (\S+)'),
    'mig': ('--query-mig-mode', r'MIG mode is (\S+)'),
    'cc': ('--query-cc-mode', r'CC mode is (\S+)'),
    'ppcie': ('--query-ppcie-mode', r'PPCIe mode is (\S+)')}
VALUES = {'enabled': 'on', 'disabled': 'off'}
UNKNOWN = 'unknown'


class Refused(Exception):
    """The GPU cannot be read or changed, for a reason in words."""


def check(address):
    """Refuse what is not an NVIDIA GPU that no process has open.

    The user of nova-compute may ask for any GPU, also for one that a guest
    has, or that a driver of the host has.
    """
    if not re.fullmatch(ADDRESS, address):
        raise Refused(f'{address!r} is not a PCI address')
    device = pathlib.Path(SYSFS, 'bus/pci/devices', address)
    try:
        vendor, enabled = ((device / name).read_text().strip()
                           for name in ('vendor', 'enable'))
        driver = os.path.basename(os.readlink(device / 'driver'))
    except OSError as exc:
        raise Refused(f'{address}: {exc}') from None
    if vendor != '0x10de':
        raise Refused(f'{address} is not an NVIDIA GPU')
    if not re.fullmatch(r'(?:[a-z0-9]+[-_])*vfio[-_]pci', driver):
        raise Refused(f'{address} is bound to {driver}, not to a VFIO driver')
    if enabled != '0':
        raise Refused(f'a process has {address} open')


def run_tool(address, *options):
    """Return what NVIDIA's tool prints about a GPU, line by line.

    Its option --gpu-bdf takes a part of an address; it refuses one that is a
    part of several.
    """
    command = [sys.executable, '-E', '-s', TOOL, f'--gpu-bdf={address}',
               *options]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors='replace',
            timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Refused(f'{options[0]}: {TOOL} took longer than {SECONDS} s'
                      ) from None
    if done.returncode:
        raise Refused(f'{options[0]}: {TOOL} ended with status '
                      f'{done.returncode}: {done.stdout[-1000:].strip()}')
    return done.stdout.splitlines()


def answer(address, lines, pattern):
    """Return what the last line about the GPU has that matches a pattern."""
    found = [match[1] for line in lines if (match := re.search(
        rf'\bGPU {re.escape(address)} .*?\b{pattern}$', line))]
    if not found:
        raise Refused(f'{TOOL} printed no line with {pattern!r}: '
                      f'{" ".join(lines)[-1000:]}')
    return found[-1]


def names(address):
    """Return the names of the knobs that the tool knows for the GPU."""
    option = '--knobs-reset-to-defaults-list'
    lines = run_tool(address, option)
    text = answer(address, lines, r'BAR0 0x[0-9a-f]+ (\{.*\})')
    try:
        return list(ast.literal_eval(text))
    except (SyntaxError, ValueError):
        raise Refused(f'{option}: {text!r} is not a dict') from None


def value(address, name):
    """Return the value of a knob; "unknown" if the tool does not show it.

    It shows ECC only while confidential computing is off, for example.
    """
    if name not in QUERIES:
        return UNKNOWN
    option, pattern = QUERIES[name]
    try:
        found = answer(address, run_tool(address, option), pattern)
    except Refused as exc:
        sys.stderr.write(f'{exc}\n')
        return UNKNOWN
    return VALUES.get(found, found)


def main(arguments):
    """Do what the arguments say, and return the exit status.

    It is 3 if something is wrong with the GPU, and 1 or 2 if this machine is
    not set up, or the arguments are wrong.
    """
    if len(arguments) != 2 or arguments[0] not in ('query', 'reset'):
        sys.stderr.write(f'usage: {sys.argv[0]} query|reset ADDRESS\n')
        return 2
    action, address = arguments
    if not os.path.isfile(TOOL):
        sys.stderr.write(f'{TOOL} is missing: install gpu-admin-tools\n')
        return 1
    try:
        check(address)
        if action == 'reset':
            run_tool(address, '--knobs-reset-to-defaults', 'all')
        else:
            sys.stdout.write(json.dumps(
                {name: value(address, name) for name in names(address)})
                + '\n')
    except Refused as exc:
        sys.stderr.write(f'{exc}\n')
        return 3
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
