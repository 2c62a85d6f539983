# SPDX-License-Identifier: Apache-2.0
"""Base classes of tests of commands, with a conductor on SQLite."""

import contextlib
import dataclasses
import io
import json
import logging
import os

import fixtures
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin.cmd import manage
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import admin
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.rpc import conductor_client
from tests.fixtures import conductor as conductor_fixture
from tests.fixtures import hosts
from tests.fixtures import tenant
from tests.unit.conductor import base as machine

INSTANCE = 'd9428888-122b-41e1-b85c-5d3b8d7d4f2e'
H100 = ('H100', '--vendor', '10de', '--device', '2330')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a command."""

    code: int
    out: str
    err: str


def run(*arguments, **kwargs):
    """Run gpgpu-manage; kwargs as of manage.run."""
    out, err = io.StringIO(), io.StringIO()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = manage.run(arguments, **kwargs)
    finally:
        # cliff logs to the stderr of the command, which is gone.
        root.handlers[:] = handlers
        root.setLevel(level)
    return Result(code=code, out=out.getvalue(), err=err.getvalue())


class CommandTestCase(base.BaseTestCase):
    """Base class of tests with one host h1 of eight 10de:2330.

    :cvar variants: those that a test starts with
    :cvar cleaned_before: whether devices are clean when first seen
    """

    variants = ('H100',)
    cleaned_before = True

    def setUp(self):
        super().setUp()
        self.conf = self.useFixture(conductor_fixture.Conf(
            cleaned_before=self.cleaned_before)).conf
        self.conductor = self.useFixture(
            conductor_fixture.ConductorFixture(self.conf))
        self.api = conductor_client.ConductorAPI(self.conf)
        self.context = context.admin()
        for name in self.variants:
            self.api.variant_create(self.context, admin.VariantInfo(
                name=name, vendor='10de', device='2330'))
        self.report()

    def report(self, functions=machine.EIGHT, host='h1', **kwargs):
        return hosts.store(
            self.conductor.db, machine.scan(functions, host, **kwargs))

    def claim(self, count=1, instance=INSTANCE):
        db = self.conductor.db
        granted = claims.claim(db, claim_obj.ClaimRequest(
            **tenant.TENANT,
            instance_uuid=instance, host='h1', request=request.Request(
                demands=(request.Demand(
                    resource_class=naming.resource_class('H100'),
                    count=count),))), lease=600)
        claims.activate(db, machine.uuids(granted))
        return granted.assignments

    def manage(self, *arguments, **kwargs):
        return run(*arguments, conf=self.conf, **kwargs)

    def done(self, *arguments, **kwargs):
        """Return the output of a command, which must succeed."""
        result = self.manage(*arguments, **kwargs)
        self.assertEqual((0, ''), (result.code, result.err))
        return result.out

    def json(self, *arguments, **kwargs):
        return json.loads(self.done(*arguments, '-f', 'json', **kwargs))

    def refused(self, *arguments, code=1, **kwargs):
        """Return the only line on stderr of a command that is refused."""
        result = self.manage(*arguments, **kwargs)
        self.assertEqual((code, ''), (result.code, result.out), result.err)
        self.assertRegex(result.err, r'\Agpgpu-(host|manage): .+\n\Z')
        self.assertNotIn('Traceback', result.err)
        return result.err

    def misused(self, *arguments):
        """Return the last line on stderr of a command called wrongly."""
        result = self.manage(*arguments)
        self.assertEqual((2, ''), (result.code, result.out))
        self.assertIn('usage: gpgpu-manage', result.err)
        return result.err.splitlines()[-1]


class ConfiguredTestCase(base.BaseTestCase):
    """Base class of tests of a process without a conductor."""

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        for name in ('CONFIG_FILE', 'NOVA_CONFIG_FILE'):
            self.useFixture(fixtures.MonkeyPatch(
                f'gpgpu_plugin.cmd.base.{name}',
                os.path.join(self.folder, name)))

    def write(self, name, *lines):
        path = os.path.join(self.folder, name)
        with open(path, 'w', encoding='utf-8') as file:
            file.write('\n'.join(lines) + '\n')
        return path

    def refused(self, *arguments, code=1, **kwargs):
        result = run(*arguments, **kwargs)
        self.assertEqual((code, ''), (result.code, result.out))
        self.assertNotIn('Traceback', result.err)
        return result.err
