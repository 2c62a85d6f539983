# SPDX-License-Identifier: Apache-2.0
"""Users of RabbitMQ with the permissions that doc/source/admin/security gives.

The documentation has the commands; this test runs them.
"""

from __future__ import annotations

import functools
import pathlib
import re
import shlex
import shutil
import uuid

import amqp
import sqlalchemy as sa

from gpgpu_plugin import context
from gpgpu_plugin.compute import service
from gpgpu_plugin.conductor import service as service_mod
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import report
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import keys
from tests.fixtures import services
from tests.unit.conductor import base

PAGE = (pathlib.Path(__file__).parents[2]
        / 'doc' / 'source' / 'admin' / 'security.rst')
Kind = context.CallerKind
PASSWORD = uuid.uuid4().hex
FOUND = (drift.of('mdev_unassigned', 'h1', 'm1', sysfs='it is there'),)


def commands() -> list[list[str]]:
    """Return the arguments of rabbitmqctl in the documentation, in order."""
    lines = re.sub(r'\\\n\s*', '', PAGE.read_text()).splitlines()
    return [shlex.split(line.strip().removeprefix('# rabbitmqctl '))
            for line in lines if line.strip().startswith('# rabbitmqctl ')]


class HostUserTest(base.ConductorTestCase):

    def setUp(self):
        services.require(self, services.RABBITMQ)
        if shutil.which('rabbitmqctl') is None:
            services.missing(self, 'rabbitmqctl is not installed')
        super().setUp()
        self.prefix = f'test-{uuid.uuid4().hex[:8]}'
        self.conf.set_override('topic_prefix', self.prefix, 'gpgpu')
        self.signing = self.useFixture(keys.Keys(self.conf, self.db))
        self.signing.make(Kind.HOST, 'h1')
        self.signing.make(Kind.OPERATOR, 'root')
        self.user = f'{self.prefix}-h1'
        self.conductor_user = f'{self.prefix}-conductor'
        self.create_user()
        url = sa.make_url(services.RABBITMQ).set(database=self.prefix)
        self.conductor_transport = self.transport(
            url.set(username=self.conductor_user, password=PASSWORD)
            .render_as_string(hide_password=False))
        conductor = service_mod.ConductorService(
            self.conf, self.conductor_transport, self.db)
        conductor.start()
        self.addCleanup(conductor.stop)
        self.url = url.set(username=self.user, password=PASSWORD)
        self.host_transport = self.transport(
            self.url.render_as_string(hide_password=False))

    def transport(self, url):
        self.conf.set_override('transport_url', url, 'gpgpu')
        transport = rpc_transport.get_transport(self.conf)
        self.addCleanup(transport.cleanup)
        return transport

    def create_user(self):
        """Run the commands of the documentation with names of this test."""
        found = commands()
        self.assertEqual(
            ['add_vhost', 'add_user', 'set_permissions', 'add_user',
             'set_permissions', 'set_topic_permissions'],
            [arguments[0] for arguments in found])
        names = {'gpu': self.prefix, 'nova-cmp1': self.user,
                 'SECRET': PASSWORD, 'SECRET2': PASSWORD,
                 'conductor': self.conductor_user}
        self.addCleanup(
            services.rabbitmqctl, self, 'delete_vhost', self.prefix)
        for user in (self.user, self.conductor_user):
            self.addCleanup(
                services.rabbitmqctl, self, 'delete_user', user)
        for arguments in found:
            services.rabbitmqctl(self, *(names.get(word) or word.replace(
                'gpgpu-', f'{self.prefix}-').replace('cmp1', 'h1')
                for word in arguments))

    def test_host_claims_and_answers_questions(self):
        api = conductor_client.ConductorAPI(
            self.conf, self.host_transport, caller=Kind.HOST, name='h1')
        api.begin_session(context.admin(), report.SessionRequest(
            host='h1', node='h1', node_uuid=base.NODE, version='1',
            start_uuid=str(uuid.uuid4()), expected=1,
            identity=host_rules.MachineIdentity(machine_id='h1')))
        self.assertEqual((), api.clean_tasks(context.admin(), 'h1'))
        server = rpc_transport.server(
            self.host_transport, rpc_transport.compute_topic(self.conf),
            'h1', [service.ComputeManager(
                lambda: None, lambda: None,
                lambda assignments: tuple(
                    claim.Usage(uuid=assignment.uuid, used=True, reason='x')
                    for assignment in assignments),
                lambda repairs: FOUND,
                functools.partial(api.answer, context.admin(), 'h1'))],
            guard=compute_api.guard_of(self.conf, 'h1'))
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)
        self.assertEqual(FOUND, conductor_client.ConductorAPI(
            self.conf, self.conductor_transport, caller=Kind.OPERATOR,
            ).examine_hosts(context.admin(), ['h1']))

    def refused(self, action):
        """Refuse an action of the user on a channel of its own."""
        connection = amqp.Connection(
            f'{self.url.host}:{self.url.port or 5672}',
            userid=self.user, password=PASSWORD,
            virtual_host=self.prefix)
        connection.connect()
        channel = connection.channel()
        try:
            # The broker refuses a message only when the next answer comes.
            self.assertRaises(amqp.AccessRefused, lambda: (
                action(channel), channel.basic_qos(0, 1, False)))
        finally:
            connection.close()

    def test_host_reaches_no_queue_of_others(self):
        operator = rpc_transport.conductor_topic(self.conf, Kind.OPERATOR)
        message = amqp.Message('{}')
        own = f'{self.prefix}-compute.h1'
        for action in (
                lambda channel: channel.basic_publish(message, '', operator),
                lambda channel: channel.basic_publish(
                    message, rpc_transport.EXCHANGE, operator),
                lambda channel: channel.basic_publish(
                    message, rpc_transport.EXCHANGE,
                    f'{self.prefix}-compute.h2'),
                lambda channel: channel.basic_publish(
                    message, f'{self.prefix}-compute_fanout', ''),
                lambda channel: channel.basic_get(operator),
                lambda channel: (
                    channel.queue_declare(own),
                    channel.queue_bind(
                        own, f'{self.prefix}-conductor-host_fanout')),
                lambda channel: channel.queue_delete(operator),
                lambda channel: (
                    channel.queue_declare(own),
                    channel.queue_bind(own, rpc_transport.EXCHANGE,
                                       operator)),
                lambda channel: channel.queue_declare(
                    f'{self.prefix}-compute.h2')):
            self.refused(action)
