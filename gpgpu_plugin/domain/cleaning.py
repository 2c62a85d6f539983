# SPDX-License-Identifier: Apache-2.0
"""Cleaning policies: what must be proven before the next tenant.

A cleaning is a ladder of steps, which the host takes in order. Each returns
its evidence as data, and the conductor judges all of it by the policy of the
device's variant: a device of which a required step is missing, failed or did
not apply is not offered.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin import exception
from gpgpu_plugin import nvidia
from gpgpu_plugin.domain import pci

RESET, FLR = 'reset', 'flr'
SETTINGS = 'settings'
SCRUB = 'scrub'
SCRUB_GUEST = 'scrub-guest'
CANARY = 'canary'
PROGRAM = 'program'
MEMORY_CLEAR = 'memory-clear'
KNOBS = 'knobs'
HOST_DRIVER = 'host-driver'

SEPARATOR = '+'
"""Between the steps of a policy."""

DEFAULT, RESET_ONLY = 'default', 'reset-only'
POLICIES: Mapping[str, tuple[str, ...]] = {
    DEFAULT: (RESET, SETTINGS, CANARY),
    'scrub': (RESET, SETTINGS, SCRUB, CANARY),
    RESET_ONLY: (RESET, SETTINGS)}
"""Steps of the shipped policies, all of them required, in their order."""

MEMORY_CLEARED = SEPARATOR.join((RESET, MEMORY_CLEAR, SETTINGS))
"""Policy that the models of nvidia.architecture pass without their driver."""

OF_MDEVS = (HOST_DRIVER,)
OF_VFS = (HOST_DRIVER, RESET, SETTINGS)
"""Steps of vGPUs and VFs, whatever the policy of their variant."""

SHIPPED = frozenset({
    FLR, PROGRAM, MEMORY_CLEAR, KNOBS, SCRUB_GUEST, *OF_VFS}.union(
        *POLICIES.values()))
"""Steps of the plugin itself."""

ABOUT_MEMORY = frozenset({
    SCRUB, SCRUB_GUEST, CANARY, PROGRAM, MEMORY_CLEAR})
"""Steps that say something about memory, if they pass."""

MEMORY = 'memory'
"""Fact that is 1 if a step of a third party says something about memory."""

MAX_REASON = 4000
"""Characters of a text that a host sends and that is stored for operators."""

_LARGEST_FACTS = 65536
_CONFIGURATION = 'configuration'
_MIB = 1024 ** 2
# Characters that the database stores.
_MAX_LENGTH = 255
_STEP = re.compile(r'[a-z0-9]+(-[a-z0-9]+)*')


class StepOutcome(enum.StrEnum):
    """Outcome of a step.

    ``inapplicable``: the step can say nothing about this device, which is no
    defect of the device.
    """

    PASSED = 'passed'
    FAILED = 'failed'
    INAPPLICABLE = 'inapplicable'


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult:
    """Evidence of one step of a cleaning.

    :ivar step: name of the step
    :ivar reason: why it failed or does not apply, or what it showed, in one
        sentence
    :ivar facts: what was measured, by name: method, hashes, numbers of bytes
    :ivar seconds: duration
    """

    step: str
    outcome: StepOutcome
    reason: str
    facts: dict[str, str | int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        return f'{self.step} {self.outcome}: {self.reason}'


def shortened(text: str) -> str:
    """Return a text that any database stores, the beginning of a long one."""
    if len(text) <= MAX_REASON:
        return text
    return f'{text[:MAX_REASON]}... ({len(text)} characters)'


def bounded(results: Sequence[StepResult]) -> tuple[StepResult, ...]:
    """Return results of a host, without what is too long to be stored.

    A step that has to prove something by its facts proves nothing then.
    """
    return tuple(dataclasses.replace(
        result, reason=shortened(result.reason), facts=_bounded(result.facts))
        for result in results)


def _bounded(facts: dict[str, str | int]) -> dict[str, str | int]:
    size = len(json.dumps(facts))
    return facts if size <= _LARGEST_FACTS else {'dropped_bytes': size}


def settings_facts(shapes: Mapping[str, Mapping[str, str]],
                   firmware: Mapping[str, str]) -> dict[str, str]:
    """Return the facts of the step ``settings``.

    :param shapes: fields of each function's configuration space, by name, by
        the function's stable id
    :param firmware: hashes in hex by name; empty where there is none
    """
    return {_CONFIGURATION: json.dumps(shapes, sort_keys=True)} | {
        f'{name.lower().replace(" ", "_")}_sha256': value
        for name, value in firmware.items()}


def changed_settings(before: StepResult, now: StepResult) -> list[str]:
    """Return how the settings of a device changed since another cleaning.

    A setting that only the later one has was not looked at before.

    :param before: result of the step ``settings``
    """
    found = _settings(now)
    return [f'{name} was {value or "none"}, is {found.get(name) or "none"}'
            for name, value in sorted(_settings(before).items())
            if (found.get(name) or '') != value]


def _settings(result: StepResult) -> dict[str, str]:
    """Return all settings by name, those of a function with its stable id."""
    found = {name: str(value) for name, value in result.facts.items()
             if name != _CONFIGURATION}
    try:
        shapes = json.loads(str(result.facts.get(_CONFIGURATION, '{}')))
        return found | {
            f'{name} of {function}': str(value)
            for function, shape in shapes.items()
            for name, value in shape.items()}
    except (ValueError, AttributeError):
        return found


def check_policy(text: str) -> str:
    """Return a cleaning policy unchanged, if it is one.

    :raises Invalid: it is no policy's name, and not at least two different
        steps, ``reset`` or ``flr`` first and ``canary``, if any, last; or it
        has no ``settings`` after ``scrub-guest``
    """
    if text in POLICIES:
        return text
    steps = text.split(SEPARATOR)
    if (len(text) > _MAX_LENGTH or len(steps) < 2
            or steps[0] not in (RESET, FLR) or HOST_DRIVER in steps
            or CANARY in steps[:-1] or len(set(steps)) < len(steps)
            or not all(_STEP.fullmatch(step) for step in steps)):
        raise exception.Invalid(
            field='cleaning policy', value=text,
            expected=f'one of {", ".join(POLICIES)}, or at least two '
                     f'different steps, {RESET} or {FLR} first and {CANARY}, '
                     f'if any, last, such as '
                     f'{SEPARATOR.join(POLICIES["scrub"])}; '
                     f'{HOST_DRIVER} is for vGPUs')
    if SCRUB_GUEST in steps and (
            SETTINGS not in steps[steps.index(SCRUB_GUEST):]):
        raise exception.Invalid(
            field='cleaning policy', value=text,
            expected=f'{SETTINGS} after {SCRUB_GUEST}, since nothing else '
                     f'compares what that guest left on the card')
    return text


def of_model(vendor: str, device: str) -> str:
    """Return the policy of a model of a catalogue that names none.

    :param vendor: PCI id
    :param device: PCI id
    """
    return (MEMORY_CLEARED if nvidia.architecture(vendor, device)
            else DEFAULT)


def doubt(policy: str, vendor: str, device: str) -> str | None:
    """Return why the GPUs of a model may fail to pass a policy.

    :param vendor: PCI id
    :param device: PCI id
    :returns: None: nothing that is known of the model speaks against it
    """
    is_known = nvidia.architecture(vendor, device) is not None
    mute = {CANARY, SCRUB, *(() if is_known else (MEMORY_CLEAR, KNOBS))}
    found = [step for step in steps_of(policy) if step in mute]
    choice = (f'{MEMORY_CLEARED} passes' if is_known else
              f'reset+scrub-guest+settings passes if its image has the '
              f'driver, {RESET_ONLY} passes and proves nothing about the '
              f'memory')
    return (f'{" and ".join(found)} of its cleaning policy can say nothing '
            f'about most GPUs without their driver: these stay dirty, and no '
            f'instance gets one, until their variant has another policy: '
            f'{choice}') if found else None


def steps_of(policy: str) -> tuple[str, ...]:
    """Return the steps of a policy in their order."""
    return POLICIES.get(policy) or tuple(policy.split(SEPARATOR))


def required(policy: str, stable_id: str, *,
             makes_mdevs: bool) -> tuple[str, ...]:
    """Return the steps that the cleaning of a device must pass.

    The memory of a vGPU or VF belongs to the driver of its GPU, so the policy
    of the variant is about whole GPUs only.

    :param makes_mdevs: whether mdevs are created on the device
    """
    if pci.function_id_of(stable_id) != stable_id:
        return OF_MDEVS
    if pci.pf_of(stable_id) is not None:
        return OF_MDEVS if makes_mdevs else OF_VFS
    return steps_of(policy)


def failure(results: Sequence[StepResult], steps: Sequence[str],
            memory_mib: int | None = None) -> str | None:
    """Return why a device is not clean; None: it is.

    A step that failed is never outweighed by others, required or not.

    :param steps: those that the policy requires
    :param memory_mib: MiB of the device's memory; None: as the host says
    """
    failed = [result for result in results
              if result.outcome is StepOutcome.FAILED]
    by_name: dict[str, StepResult] = {}
    for result in results:
        # Of two results, the one that does not pass counts.
        if (result.step not in by_name
                or result.outcome is not StepOutcome.PASSED):
            by_name[result.step] = result
    # The host takes no step after a failure: those are not missing.
    unproven = [_unproven(by_name.get(step), step, memory_mib)
                for step in steps if step in by_name or not failed]
    reasons = dict.fromkeys([*map(str, failed), *filter(None, unproven)])
    return '; '.join(reasons) or None


def _unproven(result: StepResult | None, step: str,
              memory_mib: int | None) -> str | None:
    """Return why a required step is no evidence; None: it is."""
    if result is None:
        return f'{step} is required, and the host did not do it'
    if result.outcome is not StepOutcome.PASSED:
        return str(result)
    if step not in (SCRUB, SCRUB_GUEST):
        return None
    verified = _number(result, 'bytes_verified')
    memory = max(_number(result, 'bytes_of_memory'),
                 _number(result, 'bytes_of_window'), (memory_mib or 0) * _MIB)
    if verified < memory or not memory:
        return (f'{step} verified {verified} of {memory} bytes of memory, '
                f'which is not all of it')
    return None


def is_harmless(results: Sequence[StepResult], steps: Sequence[str],
                memory_mib: int | None = None) -> bool:
    """Return whether a cleaning found nothing against a device.

    Steps may have said nothing, which is no defect of the device: it is not
    clean, and another policy may prove that it is.
    """
    mute = {result.step for result in results
            if result.outcome is StepOutcome.INAPPLICABLE}
    return failure(
        [result for result in results
         if result.outcome is not StepOutcome.INAPPLICABLE],
        [step for step in steps if step not in mute], memory_mib) is None


def _number(result: StepResult, fact: str) -> int:
    value = result.facts.get(fact, 0)
    return value if isinstance(value, int) else 0


def is_proven(passed: str | None, steps: Sequence[str]) -> bool:
    """Return whether a device has passed all that is required of it now.

    :param passed: steps that its last cleaning passed, joined; None: it was
        never cleaned on its host
    :param steps: those that are required
    """
    return passed is not None and set(steps).issubset(
        passed.split(SEPARATOR))


# -- Knobs: settings in a GPU's firmware that a reset does not change.
#
# A guest can change them, and its successor gets the GPU so: without ECC, for
# example, bits can be flipped by hammering rows of memory (GPUHammer). The
# vendor's tool reads and resets them. Source of the names and defaults:
# NVIDIA/gpu-admin-tools v2026.02.24, knob_defaults in nvidia_gpu_tools.py.


KNOB_ON, KNOB_OFF, KNOB_UNKNOWN = 'on', 'off', 'unknown'
ECC, MIG, CC, PPCIE = 'ecc', 'mig', 'cc', 'ppcie'

_A = nvidia.Architecture
# Confidential computing, and protected PCIe.
_WITH_CC = {ECC: KNOB_ON, CC: KNOB_OFF}
_DEFAULTS: Mapping[nvidia.Architecture, Mapping[str, str]] = {
    _A.TURING: {ECC: KNOB_ON}, _A.GA100: {ECC: KNOB_ON, MIG: KNOB_OFF},
    _A.AMPERE: {ECC: KNOB_ON}, _A.ADA: {ECC: KNOB_ON},
    _A.HOPPER: {**_WITH_CC, PPCIE: KNOB_OFF},
    _A.GB1XX: _WITH_CC, _A.GB2XX: _WITH_CC}

_NAME = re.compile('[a-z0-9_]+')
_EXPECTED = ('one JSON object of names in lower case and texts, such as '
             '{"ecc": "on", "mig": "off"}')


def default_knobs(vendor: str | None,
                  device: str | None) -> Mapping[str, str] | None:
    """Return the defaults of a model's knobs, by name.

    :param vendor: PCI id
    :param device: PCI id
    :returns: None: they are not known
    """
    architecture = nvidia.architecture(vendor, device)
    return None if architecture is None else _DEFAULTS[architecture]


def parse_knobs(text: str) -> dict[str, str]:
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


def knobs_text(values: Mapping[str, str]) -> str:
    """Return knobs as evidence: JSON, sorted by name."""
    return json.dumps(values, sort_keys=True)


def knob_differences(found: Mapping[str, str],
                     expected: Mapping[str, str]) -> list[str]:
    """Return how knobs differ from their defaults.

    A knob that is not shown is unknown, and so not at its default.

    :param found: values by name; names without a default are not compared
    """
    return [f'{name} is {found.get(name, KNOB_UNKNOWN)}, not {value}'
            for name, value in expected.items()
            if found.get(name, KNOB_UNKNOWN) != value]
