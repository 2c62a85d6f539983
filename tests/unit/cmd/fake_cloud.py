# SPDX-License-Identifier: Apache-2.0
"""Placement and Nova as openstacksdk's connection shows them, in memory."""

import collections
import json
import types
import urllib.parse

import requests


class FakeCloud:
    """Answers to GET and DELETE, by path.

    :ivar answers: body, HTTP status or both, by the beginning of a path; the
        longest one counts
    :ivar requests: number of requests by service and method
    :ivar seen: (path, query) of all requests
    """

    def __init__(self, answers):
        self.answers = answers
        self.requests = collections.Counter()
        self.seen = []

    def connect(self, cloud=None):
        """Connect, as openstack.connect does."""
        return types.SimpleNamespace(
            placement=_Adapter(self, 'placement'),
            compute=_Adapter(self, 'compute'),
            image=_Adapter(self, 'image'))


class _Adapter:

    def __init__(self, cloud, name):
        self._cloud = cloud
        self._name = name

    def get(self, path, params=None, headers=None, raise_exc=True):
        return self._answer('GET', path, params)

    def delete(self, path, headers=None, raise_exc=True):
        return self._answer('DELETE', path, None)

    def _answer(self, method, path, params):
        self._cloud.requests[self._name, method] += 1
        query = dict(params or {})
        self._cloud.seen.append((path, query))
        answers = self._cloud.answers
        key = max((known for known in answers if path.startswith(known)),
                  key=len, default=None)
        found = answers.get(key, 404)
        if callable(found):
            found = found(path, query)
        status, body = (
            found if isinstance(found, tuple) else
            (found, {}) if isinstance(found, int) else (200, found))
        response = requests.Response()
        response.status_code = status
        response.url = f'http://{self._name}.test{path}?' + (
            urllib.parse.urlencode(query))
        response.headers['Content-Type'] = 'application/json'
        response._content = json.dumps(body).encode()
        return response
