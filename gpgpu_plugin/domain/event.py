# SPDX-License-Identifier: Apache-2.0
"""Kinds of the events in the history."""

from __future__ import annotations

import typing

Kind = typing.Literal[
    'abort', 'accept', 'activate', 'adopt', 'adopt_failed', 'allocation_found',
    'allocation_lost', 'appeared', 'claim', 'claim_denied', 'clean',
    'clean_failed', 'clean_interrupted', 'clean_passed', 'clean_started',
    'confirm', 'disable', 'distrust', 'drain', 'enable', 'exists',
    'filter_refused',
    'group_set', 'health', 'host_delete', 'isolate', 'missing', 'moved',
    'no_candidate',
    'operator_end', 'operator_release', 'quarantine', 'release', 'repair',
    'replace', 'restored', 'retire', 'returned', 'session', 'swapped',
    'takeover', 'type_disable', 'type_enable', 'undrain', 'unisolate',
    'update', 'usage', 'variant_create', 'variant_delete', 'variant_set']

KINDS: tuple[str, ...] = typing.get_args(Kind)
"""All kinds, in the order of their names."""

WARNED = frozenset({
    'clean_failed', 'health', 'missing', 'moved', 'swapped'})
"""Kinds that are a warning in the log."""

INFORMED = frozenset({
    'abort', 'accept', 'claim', 'clean', 'clean_interrupted', 'clean_passed',
    'confirm',
    'disable', 'distrust', 'drain', 'enable', 'group_set', 'host_delete',
    'isolate', 'operator_end', 'operator_release', 'quarantine', 'release',
    'repair', 'replace', 'retire', 'returned', 'takeover', 'type_disable',
    'type_enable', 'undrain', 'unisolate', 'variant_create',
    'variant_delete', 'variant_set'})
"""Kinds that are information in the log."""
