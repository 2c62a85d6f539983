# SPDX-License-Identifier: Apache-2.0
"""Tests of what every command says if something that it needs is missing.

What each command needs follows from the class on which it is built. A command
of no known class fails a test.
"""

import contextlib
import itertools
import os
import pathlib
import shlex
import socket
from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin import context
from gpgpu_plugin.cmd import commands
from gpgpu_plugin.cmd import configuration
from gpgpu_plugin.cmd import db
from gpgpu_plugin.cmd import manage
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.rpc import signature
from tests.fixtures import keys
from tests.unit.cmd import base as cmd_base
from tests.unit.cmd import test_examples

# Commands that read no configuration: of this machine, or of files.
ALONE = {'complete', 'designate', 'designated', 'list', 'record'}
NO_SCHEMA = {
    'db sync': 'makes it', 'db version': 'says that there is none',
    'key init': 'makes the key from which those in the database come'}
NO_DATABASE = {'key init': NO_SCHEMA['key init']}


def classes(*programs):
    """Return the class of each command by name, by default of all programs."""
    return {name: entry_point.load()
            for program in programs or commands.PROGRAMS
            for name, entry_point in commands.CommandManager(program)}


def failure_code(name):
    """Return the exit code of a command that fails."""
    return classes()[name].failure_code


def built_on(base_class, besides=()):
    """Return the words of an example of each command that uses a class.

    Of the commands of gpgpu-manage; test_designation has the others.
    """
    return {name: [*name.split(),
                   *shlex.split(test_examples.examples(name)[0])]
            for name, found in classes('gpgpu-manage').items()
            if issubclass(found, base_class) and name not in besides}


@contextlib.contextmanager
def unused_port():
    """Return a port at which nobody listens, and nobody else will."""
    with socket.socket() as unused:
        unused.bind(('127.0.0.1', 0))
        yield unused.getsockname()[1]


class ClassTest(base.BaseTestCase):

    def test_what_every_command_needs_is_known(self):
        self.assertEqual(ALONE, {
            name for name, found in classes().items()
            if not issubclass(found, configuration.ConfiguredCommand)})

    def test_exceptions_are_commands(self):
        self.assertLessEqual(
            NO_SCHEMA.keys(), built_on(db.DatabaseCommand).keys())


class NeedsTestCase(cmd_base.ConfiguredTestCase):
    """Base class of tests of commands that lack something.

    They run in a folder of their own.
    """

    def setUp(self):
        super().setUp()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.db.api.DEFAULT_CONNECTION',
            f'sqlite:///{self.folder}/gpgpu.sqlite'))

    def configured(self, *lines, name='x.conf'):
        return ('--config-file', self.write(
            name, '[gpgpu]', f'keys_path = {self.folder}/keys',
            'rpc_timeout = 1', *lines))

    def check(self, found, options, *texts):
        """Check that each command is refused with one line that has texts."""
        self.assertTrue(found)
        for name, words in found.items():
            with self.subTest(name, options=options):
                err = self.refused(
                    *options, *words, code=failure_code(name))
                self.assertRegex(err, r'\Agpgpu-manage: [^\n]+\n\Z')
                for text in texts:
                    self.assertIn(text, err)
                self.assertNotIn('secret', err)

    def spread(self, found, *kinds):
        """Check that each command is refused with one kind of error.

        What tells the kinds apart does not depend on the command.

        :param kinds: options and texts
        """
        for (name, words), (options, texts) in zip(
                found.items(), itertools.cycle(kinds), strict=False):
            self.check({name: words}, options, *texts)


class FilesTest(NeedsTestCase):

    def setUp(self):
        super().setUp()
        self.all = built_on(configuration.ConfiguredCommand)

    def test_file_that_does_not_exist_is_named(self):
        self.check(self.all, ('--config-file', '/nowhere/x.conf'),
                   '/nowhere/x.conf: cannot be read: No such file',
                   'with --config-file')

    def test_file_that_cannot_be_read_is_named(self):
        binary = f'{self.folder}/binary'
        pathlib.Path(binary).write_bytes(b'\xff\xfe\n')
        self.spread(
            self.all,
            (('--config-file', self.folder),
             (f'{self.folder}: cannot be read: Is a directory', )),
            (('--config-file', binary),
             (f'{binary}: cannot be read: it is not a text file', )),
            (self.configured('nonsense'), ('x.conf:4', )),
            (('--config-dir', '/nowhere/conf.d'),
             ('/nowhere/conf.d: it is not a directory', '--config-dir')))

    def test_file_that_the_user_may_not_read_is_named(self):
        options = self.configured()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.cmd.configuration.open',
            mock.Mock(side_effect=PermissionError(13, 'Permission denied'))))
        self.spread(self.all, (options, (
            'x.conf: cannot be read: Permission denied', 'such as root')))

    def test_missing_configuration_says_where_it_is_looked_for(self):
        self.check(built_on(reach.ConductorCommand), (),
                   '[gpgpu] transport_url',
                   f'{self.folder}/CONFIG_FILE', '--config-file')
        self.check(
            built_on(db.DatabaseCommand, (*NO_DATABASE, 'key create')), (),
            '[database] connection', f'{self.folder}/CONFIG_FILE')

    def test_command_of_a_machine_names_the_file(self):
        self.useFixture(fixtures.MonkeyPatch('os.geteuid', lambda: 0))
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.host.vfio.designation.Designator.as_root',
            mock.Mock()))
        for options, text in (((), f'{self.folder}/NOVA_CONFIG_FILE'),
                              (('--config-file', '/nowhere/x.conf'),
                               '/nowhere/x.conf: cannot be read: No such')):
            err = self.refused(*options, 'undesignate', '0000:3b:00.0',
                               program=manage.HostApp)
            self.assertRegex(err, r'\Agpgpu-host: [^\n]+\n\Z')
            self.assertIn(text, err)
            self.assertIn('--config-file', err)


class BrokerTest(NeedsTestCase):

    def setUp(self):
        super().setUp()
        self.all = built_on(reach.ConductorCommand)

    def use(self, url, name='x.conf'):
        return self.configured(f'transport_url = {url}', name=name)

    def test_broker_that_is_away_is_named(self):
        with unused_port() as port:
            self.check(
                self.all, self.use(f'rabbit://me:secret@127.0.0.1:{port}/'),
                '[gpgpu] transport_url', f'127.0.0.1:{port} cannot be reached')

    def test_broker_that_is_silent_is_given_up(self):
        with socket.create_server(('127.0.0.1', 0)) as silent:
            port = silent.getsockname()[1]
            self.check(
                {'host list': ['host', 'list']},
                self.use(f'rabbit://me:secret@127.0.0.1:{port}/'),
                '[gpgpu] transport_url', f'127.0.0.1:{port} cannot be reached')

    def test_url_that_is_none_is_refused(self):
        urls = ('rabit://me:secret@h:1/', 'nonsense',
                'rabbit://me:secret@h:port/', 'rabbit://[::1', 'fake:/')
        self.spread(self.all, *(
            (self.use(url, f'{number}.conf'), (
                '[gpgpu] transport_url', 'rabbit://user:password@host:5672/'))
            for number, url in enumerate(urls)))


class KeyTest(NeedsTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.rpc.transport.probe', lambda conf, transport: None))

    def options(self, folder):
        return ('--config-file', self.write(
            f'{folder}.conf', '[gpgpu]', 'transport_url = rabbit://h/',
            f'keys_path = {self.folder}/{folder}'))

    def key(self, folder):
        path = pathlib.Path(self.folder, folder, 'operator.key')
        signature.write_key(path, lambda: 'nonsense')
        return path

    def test_key_that_is_not_one_is_named(self):
        wrong, open_to_all = self.key('wrong'), self.key('open')
        open_to_all.chmod(0o644)
        self.spread(
            built_on(reach.ConductorCommand),
            (self.options('none'), (
                f'{self.folder}/none/operator.key: No such file',
                'gpgpu-manage key create operator')),
            (self.options('wrong'), (f'{wrong}: ', )),
            (self.options('open'), (f'chmod 600 {open_to_all}', )))


class DatabaseTest(NeedsTestCase):

    def use(self, url, name='x.conf'):
        return self.configured(
            '[database]', f'connection = {url}', name=name)

    def setUp(self):
        super().setUp()
        self.all = built_on(db.DatabaseCommand, NO_DATABASE)

    def test_empty_database_needs_its_schema(self):
        pathlib.Path('empty').touch()
        self.check(built_on(db.DatabaseCommand, NO_SCHEMA),
                   self.use(f'sqlite:///{self.folder}/empty'),
                   '[database] connection', 'gpgpu-manage db sync')

    def test_server_that_is_away_is_named_without_its_password(self):
        with unused_port() as port:
            at = f'@127.0.0.1:{port}/gpgpu'
            self.spread(self.all, *(
                (self.use(f'{driver}://me:secret{at}', driver), (
                    '[database] connection', f'{driver}://me:***{at}',
                    'start the database'))
                for driver in ('postgresql+psycopg2', 'mysql+pymysql')))

    def test_server_that_is_silent_is_given_up(self):
        with socket.create_server(('127.0.0.1', 0)) as silent:
            port = silent.getsockname()[1]
            for driver in ('postgresql+psycopg2', 'mysql+pymysql'):
                self.check(
                    {'db sync': ['db', 'sync']},
                    self.use(f'{driver}://me:secret@127.0.0.1:{port}/gpgpu'),
                    f'127.0.0.1:{port}/gpgpu cannot be used')

    def test_url_that_cannot_be_used_is_refused(self):
        example = 'postgresql+psycopg2://user:password@host/gpgpu'
        self.spread(self.all, *(
            (self.use(url, f'{number}.conf'), (
                '[database] connection', text))
            for number, (url, text) in enumerate((
                ('oracle+nowhere://me:secret@h/x', 'install the driver'),
                ('foo://me:secret@h/x', 'install the driver'),
                ('nonsense', example),
                ('mysql+pymysql://me:secret@h:port/x', example)))))

    def test_malformed_option_is_named(self):
        self.check(self.all, self.configured(
            '[database]', 'connection = mysql+pymysql://h/x',
            'max_retries = often'), 'max_retries', 'x.conf', 'often')


class ConductorTest(cmd_base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.all = {
            name: [*words, '--wait', '0.1'] if name == 'conductor ping'
            else words for name,
            words in built_on(reach.ConductorCommand).items()}
        self.conf.set_override('rpc_timeout', 1, 'gpgpu')

    def test_conductor_that_does_not_answer_is_looked_for(self):
        # No later test gets these calls.
        self.conf.set_override('topic_prefix', 'nobody', 'gpgpu')
        for name, words in self.all.items():
            with self.subTest(name):
                self.assertRegex(
                    self.refused(*words, code=failure_code(name)),
                    r'No gpgpu-conductor answered \w+ within [\d.]+ s; .*'
                    r'the message broker at localhost')

    def test_key_that_the_conductor_does_not_know_is_refused(self):
        self.conductor.stop()
        made = self.useFixture(keys.Keys(self.conf, self.conductor.db))
        made.make(context.CallerKind.OPERATOR, 'op')
        self.conductor.start()
        path = signature.caller_path(self.conf, context.CallerKind.OPERATOR)
        path.unlink()
        signature.write_key(path, signature.new_master().derive(
            context.CallerKind.OPERATOR, 'op', 1).to_text)
        for name, words in self.all.items():
            with self.subTest(name):
                expected = ('No gpgpu-conductor answered ping'
                            if name == 'conductor ping'
                            else 'gpgpu-conductor refused')
                result = self.manage(*words)
                self.assertEqual((failure_code(name), ''),
                                 (result.code, result.out))
                # The conductor of this process logs there, too.
                self.assertIn(expected, result.err.splitlines()[-1])
