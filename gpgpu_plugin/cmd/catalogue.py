# SPDX-License-Identifier: Apache-2.0
"""Catalogues: YAML files of variants, such as ``etc/gpgpu/variants.yaml``."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Iterable
from collections.abc import Sequence

import yaml

from gpgpu_plugin import exception
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import variant as rules
from gpgpu_plugin.objects import codec

_NAME = 'etc/gpgpu/variants.yaml'
_FIELDS = frozenset(field.name for field in dataclasses.fields(rules.Variant))


def shipped() -> pathlib.Path:
    """Return the path of the shipped catalogue.

    It is searched for in /etc, in the installation and in the checkout.

    :raises NotFound: it is in none of them
    """
    folders = (pathlib.Path('/'), pathlib.Path(sys.prefix),
               pathlib.Path(__file__).parents[2])
    for folder in folders:
        if (folder / _NAME).is_file():
            return folder / _NAME
    raise exception.NotFound(
        kind='catalogue', name=', '.join(
            str(folder / _NAME) for folder in folders))


def read(path: pathlib.Path) -> tuple[rules.Variant, ...]:
    """Return the variants of a file, in normalised form.

    :raises NotFound: the file does not exist
    :raises Invalid: the file or an entry of it is malformed
    :raises Conflict: two entries cannot both exist
    """
    variants = tuple(_variant(path, number, entry) for number, entry
                     in enumerate(_entries(path), start=1))
    for number, variant in enumerate(variants):
        check_beside(variant, variants[:number])
    return variants


def _entries(path: pathlib.Path) -> list[object]:
    try:
        content = yaml.safe_load(path.read_text(encoding='utf-8'))
    except FileNotFoundError:
        raise exception.NotFound(kind='file', name=path) from None
    # RecursionError: of a thousand levels. ValueError: a value looks like a
    # date and is none; UnicodeDecodeError is one, too.
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as exc:
        raise _invalid(path, f'a file of YAML text: {exc}') from None
    if not isinstance(content, dict) or not isinstance(
            content.get('variants'), list):
        raise _invalid(path, 'a mapping with a list "variants"')
    return list(content['variants'])


def _variant(path: pathlib.Path, number: int,
             entry: object) -> rules.Variant:
    unknown = sorted(map(str, entry.keys() - _FIELDS)) if isinstance(
        entry, dict) else []
    if unknown:
        raise _invalid(path, f'in entry {number} only '
                             f'{", ".join(sorted(_FIELDS))}, not '
                             f'{", ".join(unknown)}')
    try:
        variant = rules.check(codec.from_primitive(rules.Variant, entry))
    except exception.Invalid as exc:
        # YAML reads an unquoted 0001 as 1 and 10e0 as 10.0.
        raise _invalid(
            path, f'a valid entry {number}, with ids in quotes: '
                  f'{exc.args[0]}') from None
    if isinstance(entry, dict) and 'cleaning_policy' not in entry:
        variant = dataclasses.replace(
            variant, cleaning_policy=cleaning.of_model(
                variant.vendor, variant.device))
    return variant


def _invalid(path: pathlib.Path, expected: str) -> exception.Invalid:
    return exception.Invalid(field='catalogue', value=str(path),
                             expected=expected)


def check_beside(variant: rules.Variant,
                 others: Sequence[rules.Variant]) -> None:
    """Refuse a variant that conflicts with others, before any is created.

    The conductor checks again when it creates the variant.

    :raises Conflict: the variant cannot exist beside the others
    """
    try:
        rules.check_beside(variant, others)
    except exception.Conflict as exc:
        raise exception.Conflict(
            kind='variant', name=variant.name,
            reason=f'{exc.kwargs["reason"]}; nothing was imported') from None


def only(variants: Iterable[rules.Variant],
         names: Sequence[str]) -> tuple[rules.Variant, ...]:
    """Return the named variants.

    :raises NotFound: no variant has one of the names
    """
    known = {variant.name: variant for variant in variants}
    for name in names:
        if name not in known:
            raise exception.NotFound(
                kind='variant of the catalogue',
                name=f'{name} (known: {", ".join(sorted(known))})')
    return tuple(known[name] for name in dict.fromkeys(names))
