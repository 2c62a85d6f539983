# SPDX-License-Identifier: Apache-2.0
"""Tests of what every command says if an argument is wrong.

The arguments of commands are those of their parsers. An argument that may name
something needs a row of UNKNOWN, or a place in FREE or MAY_BE_GONE; otherwise
a test fails.
"""

import argparse
import contextlib
import io
import os
import pathlib
import shlex
import types

import fixtures
from openstack import exceptions as sdk_exceptions
from oslotest import base

from gpgpu_plugin.cmd import manage
from tests.unit.cmd import base as cmd_base
from tests.unit.cmd import test_examples

NOBODY = 'd9428888-122b-41e1-b85c-000000000000'
_HOST = 'host h9 does not exist; see "gpgpu-manage host list"'
_VARIANT = 'variant V9 does not exist; see "gpgpu-manage variant list"'
_DEVICE = (('d9', 'device d9 does not exist; see "gpgpu-manage device list'),
           ('h9 03:00.0', _HOST),
           ('h1 99:00.0', 'device 0000:99:00.0 on host h1 does not exist'),
           ('h1 slot', "'slot' is not valid: DOMAIN:BUS:DEVICE.FUNCTION"),
           ('a b c', 'a UUID, or a host and a PCI address'))

UNKNOWN = {
    'assignment end': (
        (NOBODY, f'assignment {NOBODY} does not exist; see'),
        (f'h9 --instance {cmd_base.INSTANCE}',
         f'assignment of instance {cmd_base.INSTANCE} on h9 does not exist'),
        ('h1', 'active assignment h1 does not exist')),
    'assignment list': (('--host h9', _HOST),
                        ('--marker a9', 'assignment a9 does not exist')),
    'device accept': [(f'{words} --reason x', text)
                      for words, text in _DEVICE[1:4]],
    'device cleanings': (*_DEVICE, ('d1 --marker x', 'does not exist')),
    'device list': (
        ('--host h9', _HOST), ('--variant V9', _VARIANT),
        ('--marker d9', 'device d9 does not')),
    'device release': _DEVICE,
    'device replace': _DEVICE,
    'device show': _DEVICE,
    'doctor': (('--host h9', _HOST), ),
    'event list': (
        ('--marker x', 'the number of an event'),
        ('--from 2026-02-01 --to 2026-01-01', 'ends after it begins')),
    'flavor set': (
        ('--gpu V9=1 f1', 'variant V9 (known: H100)'),
        ('--gpu H100/T9 f1', 'vGPU type H100/T9'),
        ('--gpu H100 f9', 'flavor f9: No Flavor found for f9')),
    'flavor unset': (('f9', 'flavor f9: No Flavor found for f9'), ),
    'hold add': [(f'{words} --kind disabled', text)
                 for words, text in _DEVICE],
    'hold list': (('--host h9', _HOST),
                  ('--marker x', 'the number of a hold')),
    'hold remove': [(f'{words} --kind disabled', text)
                    for words, text in _DEVICE],
    'group links': (('h9 H100', _HOST),
                    ('h1 V9', 'group V9 on h1 (known there: H100)')),
    'group list': (('--host h9', _HOST), ('--variant V9', _VARIANT),
                   ('--marker x', 'of the form HOST:VARIANT')),
    'group set': (
        ('h9 H100 --unset allocation-policy', _HOST),
        ('h1 V9 --unset allocation-policy',
         'group V9 on h1 (known there: H100)')),
    'group show': (('h9 H100', _HOST),
                   ('h1 V9', 'group V9 on h1 (known there: H100)')),
    'host delete': (('h9', _HOST), ),
    'host list': (('--marker h9', _HOST), ),
    'host drain': (('h9', _HOST), ),
    'host show': (('h9', _HOST), ),
    'host takeover': (('h9', _HOST), ),
    'host undrain': (('h9', _HOST), ),
    'key create': (('host h9 --file /dev/null/k', '/dev/null'),
                   ('host h9 --dir /dev/null', '/dev/null')),
    'key revoke': (('host h9', 'valid key of host h9 does not exist; see'), ),
    'map': (('--host h9', _HOST), ('--variant V9', _VARIANT),
            ('--html /nowhere/map.html', '/nowhere is not a directory')),
    'list': (
        ('--machine m9', 'machine m9 (known: '),
        ('--sysfs-root /nowhere', '/nowhere/bus/pci/devices: cannot be')),
    'record': (
        ('/nowhere/x.json', '/nowhere/x.json: cannot be written: No such'),
        ('--sysfs-root /nowhere', '/nowhere/bus/pci/devices: cannot be')),
    'usage export': (('/nowhere/u.csv', '/nowhere/u.csv: cannot be'),
                     ('/', 'file /: it exists')),
    'usage list': (
        ('--marker u9', 'usage u9 does not exist'),
        ('--from 2026-02-01 --to 2026-01-01', 'ends after it begins')),
    'usage summary': (
        ('--from 2026-02-01 --to 2026-01-01', 'ends after it begins'), ),
    'variant create': [
        (f'X --vendor 10de --device 2331 {words}', text) for words, text in (
            ('--vendor zz', 'vendor: \'zz\' is not valid: 4 hex digits'),
            ('--device zz', 'device: \'zz\' is not valid: 4 hex digits'),
            ('--subsystem zz --subsystem-vendor 10de', '4 hex digits'),
            ('--revision zzz', '2 hex digits'),
            ('--type tpu', 'one of gpu'),
            ('--resource-class gpu', 'resource class'),
            ('--mix-policy x', 'one of same_type, equal_size'),
            ('--allocation-policy x', 'one of depth_first, breadth_first'),
            ('--cleaning-policy x', 'one of default, scrub'),
            ('--trait x', 'CUSTOM_'))
    ] + [('H100 --vendor 10de --device 2330', 'it exists already, and')],
    'variant delete': (('V9', _VARIANT), ),
    'variant import': (('/nowhere/v.yaml', '/nowhere/v.yaml does not exist'),
                       ('--only V9', 'V9 (known: AMD_MI100, ')),
    'variant show': (('V9', _VARIANT), ),
    'variant set': [('V9 --trait CUSTOM_X', _VARIANT)] + [
        (f'H100 {words}', text) for words, text in (
            ('--vendor zz', '4 hex digits'), ('--device zz', '4 hex digits'),
            ('--subsystem zz --subsystem-vendor 10de', '4 hex digits'),
            ('--revision zzz', '2 hex digits'), ('--type tpu', 'one of gpu'),
            ('--resource-class gpu', 'resource class'),
            ('--mix-policy x', 'one of same_type, equal_size'),
            ('--allocation-policy x', 'one of depth_first, breadth_first'),
            ('--cleaning-policy x', 'one of default, scrub'),
            ('--trait x', 'CUSTOM_'))],
    'vgpu-type disable': (('V9 T9', _VARIANT), ('H100 T9', 'vGPU type T9'),
                          ('h9 H100 passthrough', _HOST)),
    'vgpu-type enable': (('V9 T9', _VARIANT), ('H100 T9', 'vGPU type T9'),
                         ('h9 H100 passthrough', _HOST)),
    'vgpu-type list': (('--host h9', _HOST), ('--variant V9', _VARIANT),
                       ('--marker x', 'of the form HOST:VARIANT:TYPE'),
                       ('--cloud --limit 2', 'none with --cloud')),
    'what-if drain': (('h9', _HOST), ('h1 h9', _HOST)),
    'why-not': (('--flavor f1 --host h9', _HOST),
                ('--flavor f9', 'flavor f9: Nova or Placement cannot'),
                ('--server s9', 'server s9: Nova cannot be asked')),
}
"""Arguments that name what is not there or wrong, and what is said."""

HOST_PROGRAM = ('list', 'record')

FREE = {
    'project': 'of Keystone, which gpgpu-conductor does not ask',
    'user': 'of Keystone',
    'request': 'of Nova',
    'reason': 'a text',
}
MAY_BE_GONE = {
    ('assignment list', 'instance'), ('device list', 'instance'),
    # Those that Nova creates mdevs of may be unknown here.
    ('device list', 'vgpu_type'), ('event list', 'device'),
    ('event list', 'host'), ('event list', 'instance'),
    ('vgpu-type list', 'type'),
    ('key create', 'name'), ('usage list', 'host'),
    ('usage list', 'instance'), ('usage list', 'variant'),
    ('usage summary', 'host'), ('usage summary', 'instance'),
    ('usage summary', 'variant'), ('designate', 'device'),
    ('undesignate', 'device')}
"""Arguments that may name what was deleted, or what only a machine knows."""


def actions(parser):
    """Return the arguments of a command that take a value."""
    return [action for action in parser._actions
            if action.dest not in {*test_examples.FOREIGN, 'help'}
            and action.nargs != 0
            and not isinstance(action, argparse.BooleanOptionalAction)]


def given(parser, words):
    """Return the arguments that words give another value than the default."""
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            parsed = parser.parse_args(shlex.split(words))
        except SystemExit:
            return set()
    return {action.dest for action in parser._actions
            if getattr(parsed, action.dest, None)
            not in (None, [], action.default)}


class ArgumentTest(base.BaseTestCase):

    def test_every_argument_is_checked_or_free(self):
        left = {}
        for name, parser in test_examples.parsers().items():
            known = set(FREE).union(*(
                given(parser, words) for words, _ in UNKNOWN.get(name, ())))
            missing = {
                action.dest for action in actions(parser)
                if not (action.choices or action.type)} - known - {
                    dest for command, dest in MAY_BE_GONE if command == name}
            if missing:
                left[name] = missing
        self.assertEqual({}, left)


class UseTest(cmd_base.CommandTestCase):

    variants = ()

    def test_unknown_option_is_named_with_the_usage(self):
        for name in test_examples.parsers('gpgpu-manage'):
            with self.subTest(name):
                words = shlex.split(test_examples.examples(name)[0])
                err = self.misused(*name.split(), *words, '--colour')
                self.assertIn(f'gpgpu-manage {name}: error: ', err)
                self.assertIn('--colour', err)

    def test_missing_arguments_are_named_with_the_usage(self):
        for name, parser in test_examples.parsers(
                'gpgpu-manage').items():
            required = [action for action in parser._actions
                        if action.required and action.nargs != '*']
            if not required:
                continue
            with self.subTest(name):
                err = self.misused(*name.split())
                for action in required:
                    self.assertIn((
                        action.option_strings or [
                            action.metavar or action.dest])[0], err)

    def test_malformed_value_is_named_with_its_option(self):
        for name, parser in test_examples.parsers(
                'gpgpu-manage').items():
            words = shlex.split(test_examples.examples(name)[0])
            for action in actions(parser):
                if not (action.option_strings and (
                        action.choices or action.type not in (
                            None, str, pathlib.Path))):
                    continue
                option = action.option_strings[0]
                with self.subTest(name, option=option):
                    err = self.misused(*name.split(), *words, option, 'a=b')
                    self.assertIn(f'argument {option}: ', err)
                    self.assertIn("'a=b'", err)
                    # What argparse says of a type that explains nothing.
                    self.assertNotRegex(err, r'invalid \w+ value')


class UnknownTest(cmd_base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.conf.set_override('keys_path', self.folder, 'gpgpu')
        self.conf.set_override('connection', str(
            self.conductor.db.engine.url), 'database')
        self.use_clouds('')

    def use_clouds(self, text):
        path = f'{self.folder}/clouds.yaml'
        with open(path, 'w', encoding='ascii') as file:
            file.write(text)
        self.useFixture(fixtures.MonkeyPatch(
            'openstack.config.loader.CONFIG_FILES', [path]))

    def test_what_is_unknown_is_named(self):
        def find_flavor(name, **kwargs):
            raise sdk_exceptions.NotFoundException(
                f'No Flavor found for {name}')
        for name, rows in UNKNOWN.items():
            connect = None if name.startswith('why') else (
                lambda cloud: types.SimpleNamespace(
                    compute=types.SimpleNamespace(find_flavor=find_flavor)))
            for words, text in rows:
                with self.subTest(name, arguments=words):
                    self.assertIn(text, self.refused(
                        *name.split(), *shlex.split(words), connect=connect,
                        program=manage.HostApp if name in HOST_PROGRAM
                        else manage.ManageApp))

    def test_cloud_that_cannot_be_used_is_named(self):
        instance = [
            name.split() for name, parser in test_examples.parsers().items()
            if 'instance' in {action.dest for action in parser._actions}]
        self.assertIn(['usage', 'list'], instance)
        for words in (
                *((*name, *(('h1', ) if name[1] == 'end' else ()),
                   '--instance', 's9') for name in instance),
                ('flavor', 'set', '--gpu', 'H100', 'f1'),
                ('flavor', 'unset', 'f1')):
            for options, text in (((), 'auth_url'),
                                  (('--os-cloud', 'c9'), 'c9')):
                with self.subTest(words, options=options):
                    err = self.refused(*options, *words)
                    self.assertIn(text, err)
                    self.assertIn('clouds.yaml', err)
                    self.assertIn('--os-cloud', err)
