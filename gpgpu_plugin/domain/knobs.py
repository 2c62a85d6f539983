# SPDX-License-Identifier: Apache-2.0
"""Knobs: settings in a GPU's firmware that a reset does not change.

A guest can change them, and its successor gets the GPU so: without ECC, for
example, bits can be flipped by hammering rows of memory (GPUHammer). The
vendor's tool reads and resets them. Source of the names and defaults:
NVIDIA/gpu-admin-tools v2026.02.24, knob_defaults in nvidia_gpu_tools.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from gpgpu_plugin import exception
from gpgpu_plugin import nvidia

ON, OFF, UNKNOWN = 'on', 'off', 'unknown'
ECC, MIG, CC, PPCIE = 'ecc', 'mig', 'cc', 'ppcie'

_A = nvidia.Architecture
# Confidential computing, and protected PCIe.
_WITH_CC = {ECC: ON, CC: OFF}
_DEFAULTS: Mapping[nvidia.Architecture, Mapping[str, str]] = {
    _A.TURING: {ECC: ON}, _A.GA100: {ECC: ON, MIG: OFF},
    _A.AMPERE: {ECC: ON}, _A.ADA: {ECC: ON},
    _A.HOPPER: {**_WITH_CC, PPCIE: OFF},
    _A.GB1XX: _WITH_CC, _A.GB2XX: _WITH_CC}

_NAME = re.compile('[a-z0-9_]+')
_EXPECTED = ('one JSON object of names in lower case and texts, such as '
             '{"ecc": "on", "mig": "off"}')


def defaults(vendor: str | None,
             device: str | None) -> Mapping[str, str] | None:
    """Return the defaults of a model's knobs, by name.

    :param vendor: PCI id
    :param device: PCI id
    :returns: None: they are not known
    """
    architecture = nvidia.architecture(vendor, device)
    return None if architecture is None else _DEFAULTS[architecture]


def parse(text: str) -> dict[str, str]:
    """Return the knobs that a program printed, by name.

    :raises Invalid: it is not one JSON object of texts
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(
            _NAME.fullmatch(name) and isinstance(value, str)
            for name, value in found.items()):
        raise exception.Invalid(
            field='knobs', value=text, expected=_EXPECTED)
    return found


def text(values: Mapping[str, str]) -> str:
    """Return knobs as evidence: JSON, sorted by name."""
    return json.dumps(values, sort_keys=True)


def differences(found: Mapping[str, str],
                expected: Mapping[str, str]) -> list[str]:
    """Return how knobs differ from their defaults.

    A knob that is not shown is unknown, and so not at its default.

    :param found: values by name; names without a default are not compared
    """
    return [f'{name} is {found.get(name, UNKNOWN)}, not {value}'
            for name, value in expected.items()
            if found.get(name, UNKNOWN) != value]
