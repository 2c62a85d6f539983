# SPDX-License-Identifier: Apache-2.0
"""Fake of flavors and servers in Nova's REST API, for openstacksdk."""

import json
import re
import uuid

import fixtures
import openstack
from wsgi_intercept import interceptor


class FakeNova(fixtures.Fixture):
    """One flavor ``gpu`` behind http://nova.test.

    :ivar specs: its extra specs
    :ivar changes: (method, path, microversion) of what changed something
    :ivar refusal: message of the HTTP 400 that a POST gets
    :ivar servers: servers that it lists, whatever the filter
    :ivar asked: queries for them
    :ivar undeletable: a key whose DELETE gets HTTP 400
    """

    HOST = 'nova.test'

    def __init__(self):
        self.flavor_id = str(uuid.uuid4())
        self.specs = {}
        self.changes = []
        self.refusal = None
        self.undeletable = None
        self.servers = []
        self.asked = []

    def _setUp(self):
        self.useFixture(fixtures.EnvironmentVariable('NO_PROXY', '*'))
        server = interceptor.RequestsInterceptor(
            lambda: self._serve, host=self.HOST, port=80)
        self.url = server.__enter__()
        self.addCleanup(server.__exit__, None, None, None)

    def connect(self, cloud=None):
        """Connect, as openstack.connect does."""
        self.cloud = cloud
        return openstack.connect(
            load_yaml_config=False, load_envvars=False,
            auth_type='admin_token', auth={
                'endpoint': f'http://{self.HOST}/v2.1', 'token': 'x'})

    def _serve(self, environ, start_response):
        method, path = environ['REQUEST_METHOD'], environ['PATH_INFO']
        status, body = self._answer(method, path, environ)
        if method != 'GET':
            self.changes.append((method, path, environ.get(
                'HTTP_OPENSTACK_API_VERSION')))
        start_response(status, [('Content-Type', 'application/json')])
        return [json.dumps(body).encode()]

    def _answer(self, method, path, environ):
        specs = f'/v2.1/flavors/{self.flavor_id}/os-extra_specs'
        flavor = {'id': self.flavor_id, 'name': 'gpu',
                  'extra_specs': self.specs}
        if re.fullmatch('/v2.1/?', path):
            return '200 OK', {'version': {
                'id': 'v2.1', 'status': 'CURRENT', 'version': '2.96',
                'min_version': '2.1', 'links': [{
                    'rel': 'self', 'href': f'http://{self.HOST}/v2.1/'}]}}
        if path == '/v2.1/servers/detail':
            self.asked.append(environ['QUERY_STRING'])
            return '200 OK', {'servers': self.servers}
        if path == '/v2.1/flavors/detail':
            return '200 OK', {'flavors': [flavor]}
        if path == f'/v2.1/flavors/{self.flavor_id}':
            return '200 OK', {'flavor': flavor}
        if method == 'GET' and path == specs:
            return '200 OK', {'extra_specs': self.specs}
        if method == 'POST' and path == specs:
            return self._add(environ)
        if method == 'DELETE' and path.startswith(f'{specs}/'):
            key = path.removeprefix(f'{specs}/')
            if key == self.undeletable:
                return '400 Bad Request', {'badRequest': {
                    'code': 400, 'message': 'not now'}}
            del self.specs[key]
            return '200 OK', {}
        return '404 Not Found', {'itemNotFound': {
            'code': 404, 'message': f'{path} could not be found.'}}

    def _add(self, environ):
        if self.refusal:
            return '400 Bad Request', {'badRequest': {
                'code': 400, 'message': self.refusal}}
        length = int(environ['CONTENT_LENGTH'])
        body = json.loads(environ['wsgi.input'].read(length))
        self.specs.update(body['extra_specs'])
        return '200 OK', body
