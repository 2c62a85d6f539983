# SPDX-License-Identifier: Apache-2.0
"""Tests of the check of Placement, which is a fake behind HTTP."""

import json

import fixtures
import openstack
from wsgi_intercept import interceptor

from gpgpu_plugin.cmd import upgrade
from tests.unit.cmd.upgrade import base
from tests.unit.cmd.upgrade import nova_conf

HOST = 'placement.test'
URL = f'http://{HOST}'


class ReachableTest(nova_conf.NovaConfMixin, base.ResultTestCase):

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.useFixture(fixtures.EnvironmentVariable('NO_PROXY', '*'))
        self.status = '200 OK'
        self.requests = []
        server = interceptor.RequestsInterceptor(
            lambda: self.serve, host=HOST, port=80)
        server.__enter__()
        self.addCleanup(server.__exit__, None, None, None)

    def serve(self, environ, start_response):
        self.requests.append((
            environ['PATH_INFO'], environ.get('HTTP_X_AUTH_TOKEN'),
            environ.get('HTTP_OPENSTACK_API_VERSION')))
        start_response(self.status, [('Content-Type', 'application/json')])
        # The SDK reads which versions there are.
        return [json.dumps({'versions': [{
            'id': 'v1.0', 'status': 'CURRENT', 'min_version': '1.0',
            'max_version': '1.39', 'links': [
                {'rel': 'self', 'href': URL}]}]}).encode()]

    def with_credentials(self, url=URL):
        return self.nova_conf(
            '[placement]', 'auth_type = admin_token', 'token = secret',
            f'endpoint = {url}', f'endpoint_override = {url}')

    def test_credentials_of_nova_are_used(self):
        self.assertIn('[placement] of nova.conf', self.success(
            upgrade.placement_reachable(self.with_credentials(), 'west')))
        self.assertEqual(
            [('/resource_classes', 'secret', 'placement 1.2')],
            self.requests)

    def test_cloud_is_used_without_credentials_of_nova(self):
        def connect(cloud):
            self.cloud = cloud
            return openstack.connection.Connection(
                auth_type='admin_token', auth={
                    'endpoint': URL, 'token': 'x'},
                placement_endpoint_override=URL)
        self.useFixture(fixtures.MonkeyPatch('openstack.connect', connect))
        for conf in (self.nova_conf(), None):
            self.assertIn('cloud west', self.success(
                upgrade.placement_reachable(conf, 'west')))
        self.assertEqual('west', self.cloud)

    def test_no_credentials_are_a_warning(self):
        for conf in (self.nova_conf(), None):
            self.assertIn('not checked', self.warning(
                upgrade.placement_reachable(conf, None)))
        self.assertEqual([], self.requests)

    def test_refused_request_fails_with_the_status(self):
        for status in ('401 Unauthorized', '403 Forbidden', '503 Gone'):
            self.status = status
            text = self.failure(
                upgrade.placement_reachable(self.with_credentials(), None))
            self.assertIn(status.split()[0], text)

    def test_placement_that_cannot_be_reached_fails(self):
        text = self.failure(upgrade.placement_reachable(
            self.with_credentials('http://127.0.0.1:1'), None))
        self.assertIn('cannot be reached', text)

    def test_cloud_that_does_not_exist_fails(self):
        self.useFixture(fixtures.EnvironmentVariable(
            'OS_CLIENT_CONFIG_FILE', f'{self.folder}/clouds.yaml'))
        self.assertIn('cloud nowhere', self.failure(
            upgrade.placement_reachable(None, 'nowhere')))
