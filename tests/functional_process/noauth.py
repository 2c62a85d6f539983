# SPDX-License-Identifier: Apache-2.0
"""Paste filter in place of keystonemiddleware's: the token is the user.

User "admin" has all roles, everybody else is a member.
"""

from __future__ import annotations

import typing

import webob
import webob.dec
import webob.exc

PROJECT = '00000000000000000000000000000001'
ROLES = {'admin': 'admin,manager,member,reader,service'}


class NoAuth:
    """WSGI filter that trusts X-Auth-Token."""

    def __init__(self, application: typing.Any) -> None:
        self._application = application

    @webob.dec.wsgify  # type: ignore[untyped-decorator]
    def __call__(self, request: webob.Request) -> typing.Any:
        user = request.headers.get('X-Auth-Token')
        if not user:
            return webob.exc.HTTPUnauthorized()
        for name in ('X-User-Id', 'X-User-Name'):
            request.headers[name] = user
        for name in ('X-Project-Id', 'X-Tenant-Id'):
            request.headers[name] = PROJECT
        request.headers['X-Project-Name'] = 'test'
        for name in ('X-User-Domain-Id', 'X-Project-Domain-Id'):
            request.headers[name] = 'default'
        request.headers['X-Roles'] = ROLES.get(user, 'member,reader')
        request.headers['X-Identity-Status'] = 'Confirmed'
        return self._application


def filter_factory(
        global_conf: typing.Any, **local_conf: typing.Any) -> type[NoAuth]:
    """Return the filter factory for paste."""
    return NoAuth
