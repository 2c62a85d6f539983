# SPDX-License-Identifier: Apache-2.0
"""Signed answers of gpgpu-conductor: the result of a call, or its error.

A reply of oslo.messaging says nothing about who sent it, and the errors of
Python that it carries could be anybody's. An answer is therefore one text, and
the MAC of this text and of the call under the key with which the call was
signed. A caller takes what has another MAC, or none, for no answer.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

import oslo_messaging

from gpgpu_plugin import exception
from gpgpu_plugin.objects import codec
from gpgpu_plugin.rpc import signature

_MAC = Callable[[str], str]
"""Function that returns the MAC of the answer to one call."""


def of_result(mac: _MAC, primitive: object) -> dict[str, str]:
    """Return the answer that has the result of a method."""
    return _sealed(mac, {'result': primitive})


def of_error(mac: _MAC, error: BaseException) -> dict[str, str]:
    """Return the answer that has an error of the plugin, or another one."""
    if not isinstance(error, exception.GPUPluginException):
        return _sealed(mac, {'failure': [type(error).__name__, str(error)]})
    name = next(cls.__name__ for cls in type(error).__mro__
                if cls.__module__ == exception.__name__)
    return _sealed(mac, {'error': [name, {
        key: value if isinstance(value, str | int | float | None)
        else str(value) for key, value in error.kwargs.items()}]})


def open_result(mac: _MAC, method: str, sealed: object) -> object:
    """Return the result that an answer has.

    :raises AnswerRefused: the caller's key did not sign it for this call
    :raises GPUPluginException: the error that it has
    :raises oslo_messaging.RemoteError: the method failed
    """
    found = sealed if isinstance(sealed, dict) else {}
    text = found.get('text')
    if not isinstance(text, str) or not signature.same(
            mac(text), found.get('mac')):
        raise exception.AnswerRefused(
            method=method, reason='the key of this caller did not sign it '
                                  'for this call')
    content = codec.decode(dict[str, typing.Any], text)
    if 'failure' in content:
        raise oslo_messaging.RemoteError(*content['failure'])
    if 'error' in content:
        name, fields = content['error']
        raise getattr(exception, name)(**fields)
    return content['result']


def _sealed(mac: _MAC, content: dict[str, object]) -> dict[str, str]:
    text = codec.encode(codec.sendable(content)).decode()
    return {'text': text, 'mac': mac(text)}
