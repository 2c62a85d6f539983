# SPDX-License-Identifier: Apache-2.0
"""Validators of ``gpgpu:`` and of the plugin's classes, loaded by nova-api.

Nova runs them from compute microversion 2.86 on. Below it, the filter and the
claim refuse what the validators would refuse.
"""

from __future__ import annotations

from nova import exception as nova_exception
from nova.api.validation.extra_specs import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request

_CUSTOM_CLASS = 'resources{group}:CUSTOM_{resource}'
"""Nova's own name of its validator of all CUSTOM_ classes."""


class _UnknownKeyValidator(base.ExtraSpecValidator):
    """Validator of every ``gpgpu:`` key that has no validator of its own."""

    def validate(self, name: str, value: str) -> None:
        """Refuse a key or value that the plugin does not know.

        :raises nova.exception.ValidationError: HTTP 400; it lists the valid
            ones
        """
        try:
            request.check_extra_spec(name, value)
        except exception.Invalid as exc:
            raise nova_exception.ValidationError(
                f'Validation failed; {exc}') from exc


class _CustomClassValidator(base.ExtraSpecValidator):
    """Validator of CUSTOM_ classes, which replaces Nova's own."""

    def validate(self, name: str, value: str) -> None:
        """Refuse a class of the plugin in a suffixed group.

        :raises nova.exception.ValidationError: HTTP 400; it names the key to
            use
        """
        key, _, resource_class = name.partition(':')
        if key != 'resources' and naming.is_reserved_class(resource_class):
            raise nova_exception.ValidationError(
                f"Validation failed; '{name}' requests no GPU: gpgpu_plugin "
                f"knows no suffixed groups. Use 'resources:{resource_class}'")
        super().validate(name, value)


def _custom_class(name: str) -> base.ExtraSpecValidator:
    return _CustomClassValidator(
        name=name,
        description='The amount of resource CUSTOM_{resource} requested.',
        value={'type': int},
        parameters=[
            {'name': 'group', 'pattern': r'([a-zA-Z0-9_-]{1,64})?'},
            {'name': 'resource', 'pattern': r'[A-Z0-9_]+'}])


def register() -> list[base.ExtraSpecValidator]:
    """Return the validators (``nova.api.extra_spec_validators``)."""
    known = [
        base.ExtraSpecValidator(
            name=key, description=(values.__doc__ or '').strip(),
            value={'type': str, 'description': key,
                   'enum': [str(value) for value in values]})
        for key, values in request.EXTRA_SPECS.items()]
    # Nova comes to it if none of the exact names above matches.
    other = _UnknownKeyValidator(
        name='gpgpu:{key}', description='Any other key; it is refused.',
        value={'type': str, 'description': 'refused'},
        parameters=[{'name': 'key', 'pattern': '.+',
                     'description': 'anything else'}])
    # Nova takes the first name that matches, in the order of loading, which
    # varies. Loaded before Nova's, the first of these is tried first; loaded
    # after it, the second replaces it.
    return [*known, other,
            _custom_class(_CUSTOM_CLASS.replace(':', ':(?:)')),
            _custom_class(_CUSTOM_CLASS)]
