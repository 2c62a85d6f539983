# SPDX-License-Identifier: Apache-2.0
"""Tests of gpgpu-conductor that cannot start, or waits for its broker."""

import signal

from tests.fixtures import database
from tests.fixtures import programs
from tests.unit.cmd import test_every_program


class ConductorTest(test_every_program.ProgramTestCase):

    def test_reason_for_which_it_does_not_start_is_one_line(self):
        expected = [
            *self.files,
            ((), ('[database] connection', 'it is not set',
                  '/etc/gpgpu/gpgpu.conf', 'mysql+pymysql://')),
            (self.conf('missing', connection='sqlite:////nowhere/x'),
             ('[database] connection', 'the SQLite file does not exist',
              'gpgpu-manage db sync')),
            (self.conf('no-schema',
                       connection=f'sqlite:///{self.folder}/empty'),
             ('[database] connection', 'gpgpu-manage db sync')),
            (self.conf('driver', connection='foo://me:secret@h/x'),
             ('[database] connection', 'install the driver')),
            (self.conf('scheme', 'transport_url = rabit://me:secret@h:1/'),
             ('[gpgpu] transport_url', 'rabbit://user:password@host:5672/')),
            (self.conf('fake', 'transport_url = fake:/'),
             ('[gpgpu] transport_url', 'reaches no other process')),
            (self.conf('no-key'),
             (f'{self.folder}/keys/master.key: No such file',
              'gpgpu-manage key init'))]
        for what, port in (('away', self.away), ('silent', self.silent)):
            for driver, url in self.servers(port).items():
                shown = url.replace('secret', '***')
                expected.append((
                    self.conf(f'{what}-{driver}', connection=url),
                    ('[database] connection', f'{shown} cannot be used',
                     'start the database')))
        found = self.call(*(arguments for arguments, _ in expected))
        for (arguments, texts), done in zip(expected, found, strict=True):
            with self.subTest(arguments):
                self.assertEqual(1, done.code, done.err)
                self.assertRegex(done.err, r'\Agpgpu-conductor: [^\n]+\n\Z')
                for text in texts:
                    self.assertIn(text, done.err)
                self.assertNotIn('secret', done.err + done.out)
                # Where it logs.
                self.assertNotIn('Traceback', done.out)
        self.assertEqual([], list(self.folder.glob('gpgpu.sqlite')))

    def test_broker_that_does_not_answer_is_named_while_it_waits(self):
        ports = {'away': self.away, 'silent': self.silent}
        found = self.call(*(
            self.conf(name, 'sign_calls = false', port=port,
                      connection=database.new_sqlite(self.new_folder()))
            for name, port in ports.items()), until='serves as soon as')
        for port, done in zip(ports.values(), found, strict=True):
            self.assertEqual(-signal.SIGINT, done.code, done.err)
            self.assertRegex(
                done.out, f'WARNING gpgpu_plugin.cmd.conductor .* The message '
                f'broker at 127.0.0.1:{port} cannot be reached: .* check '
                f'.gpgpu. transport_url\n')
            self.assertNotIn('Traceback', done.out + done.err)

    def call(self, *calls, until=None):
        return programs.run('gpgpu_plugin.cmd.conductor', [
            programs.Call(arguments=arguments, until=until)
            for arguments in calls], str(self.folder))
