# SPDX-License-Identifier: Apache-2.0
"""Tests of options and messages that the documentation quotes."""

import ast
import configparser
import contextlib
import errno
import fnmatch
import functools
import io
import os
import re
import runpy
import shlex
import textwrap

from nova.conf import scheduler
from oslotest import base

from gpgpu_plugin import nvidia
from gpgpu_plugin import version
from gpgpu_plugin.cmd import commands as commands_cmd
from gpgpu_plugin.cmd import doctor
from gpgpu_plugin.cmd import manage
from gpgpu_plugin.doctor import drift
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import why_not
from gpgpu_plugin.privsep import sysfs
from tests.unit import test_meta


def ini_blocks(page: str) -> list[str]:
    """Return the text of each code block of INI on a page."""
    return [textwrap.dedent(block) for _, block in re.findall(
        r'^( *)\.\. code-block:: ini\n\n((?:\1 +\S.*\n|\n)+)',
        test_meta.doc(page), re.MULTILINE)]


def values(page: str, section: str, option: str) -> list[str]:
    """Return an option's values in the blocks of a page."""
    found = []
    for block in ini_blocks(page):
        parser = configparser.ConfigParser(
            strict=False, interpolation=None)
        parser.read_string(block)
        if parser.has_option(section, option):
            found.append(parser.get(section, option))
    return found


class TestInstall(base.BaseTestCase):

    def test_enabled_filters_are_the_defaults_of_nova_and_ours(self):
        [default] = [
            option.default for option in scheduler.filter_scheduler_opts
            if option.name == 'enabled_filters']
        [shown] = values('install.rst', 'filter_scheduler', 'enabled_filters')
        self.assertEqual([*default, 'GpuNUMATopologyFilter', 'GpuFilter'],
                         shown.split(','))


class TestPages(base.BaseTestCase):

    # Pages that are read from the beginning to the end, and lists.
    LONG = {'flavors', 'scheduling', 'monitoring', 'notifications', 'doctor',
            'security'}

    def test_no_page_of_reference_is_too_long_to_find_anything(self):
        lengths = {page.stem: len(page.read_text('utf-8').splitlines())
                   for page in (test_meta.TOP / 'doc/source/admin').glob(
                       '*.rst')}
        self.assertEqual(self.LONG, {
            name for name, length in lengths.items() if length > 250})


class TestCommandLine(base.BaseTestCase):
    """The reference of the command line, of which Sphinx makes the rest."""

    def test_every_command_is_in_the_reference_once(self):
        for program in commands_cmd.PROGRAMS:
            patterns = re.findall(
                rf'\.\. autoprogram-cliff:: {program}\n'
                rf'   :application: {program}\n   :command: (.+)\n',
                test_meta.doc(f'cli/{program}.rst'))
            names = [name for name, _ in commands_cmd.CommandManager(program)]
            self.assertEqual(dict.fromkeys(names, 1), {
                name: sum(fnmatch.fnmatch(name, pattern)
                          for pattern in patterns) for name in names})

    def test_every_program_has_a_manual_page(self):
        programs = {name for group, name, _ in test_meta.entry_points()
                    if group == 'console_scripts'}
        conf = runpy.run_path(str(
            test_meta.TOP / 'doc' / 'source' / 'conf.py'))
        self.assertEqual({f'cli/{name}' for name in programs},
                         {page for page, *_ in conf['man_pages']})
        for page, name, *_, section in conf['man_pages']:
            text = test_meta.doc(f'{page}.rst')
            self.assertTrue(text.startswith('=' * len(name) + f'\n{name}\n'))
            self.assertEqual(8, section)
            for title in ('Synopsis', 'Description', 'Exit codes',
                          'See also'):
                self.assertIn(f'\n{title}\n==', text, page)

    def test_release_notes_name_the_version_that_the_code_has(self):
        conf = runpy.run_path(str(
            test_meta.TOP / 'doc' / 'source' / 'conf.py'))
        self.assertEqual(version.VERSION, conf['release'])


PROMPT = re.compile(
    r'^ *[$#] (gpgpu-(?:manage|host) (?:[^\\\n]|\\\n|\\.)*)', re.MULTILINE)
"""A command behind a prompt, with the lines that continue it."""


def shown_commands(page: str) -> list[list[str]]:
    """Return the words of each command in the blocks of a page."""
    return [
        shlex.split(re.split(r' [|>] ', text.replace('\\\n', ' '))[0])
        for text in PROMPT.findall(page)]


def parse(words: list[str]) -> str | None:
    """Return why a program refuses a command line, None if it parses."""
    program, *arguments = words
    app = (manage.HostApp if program == manage.HostApp.NAME
           else manage.ManageApp)()
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            _, rest = app.parser.parse_known_args(arguments)
            factory, name, rest = app.command_manager.find_command(rest)
            factory(app, None, cmd_name=name).get_parser(name).parse_args(rest)
    except ValueError as exc:
        return str(exc)
    except SystemExit:
        return stderr.getvalue()
    return None


class TestCommandsOnPages(base.BaseTestCase):
    """Commands that readers copy."""

    def test_each_command_with_its_options_exists(self):
        pages = sorted((test_meta.TOP / 'doc' / 'source').rglob('*.rst'))
        found = [(page.name, arguments) for page in pages
                 for arguments in shown_commands(page.read_text('utf-8'))]
        self.assertEqual([], [
            (*shown, refused) for shown in found
            if (refused := parse(shown[1]))])
        self.assertGreater(len(found), 50)

    def test_command_that_does_not_exist_is_found(self):
        [arguments] = shown_commands('   $ gpgpu-manage device lost | sort\n')
        self.assertEqual(['gpgpu-manage', 'device', 'lost'], arguments)
        self.assertIn('Unknown command', parse(arguments))

    def test_option_that_does_not_exist_is_found(self):
        [arguments] = shown_commands(
            '   # gpgpu-manage device list \\\n        --helth ok\n')
        self.assertIn('--helth', parse(arguments))

    def test_examples_of_the_help_exist(self):
        self.assertEqual([], [
            refused for program in commands_cmd.PROGRAMS
            for name, _ in commands_cmd.CommandManager(program)
            for line in commands_cmd.examples(f'{program} {name}')
            if (refused := parse(shlex.split(line)))])


# Quoted on the page, but messages of Nova. "No valid host" is in the code,
# which recognises it (conductor.refusals).
NOVA_MESSAGES = {
    'Error from last host',
    'Exceeded maximum number of retries. Exhausted all hosts available'}
PLACEHOLDER = '\0'


def texts(tree: ast.AST) -> set[str]:
    """Return the strings of a module, with one mark for each placeholder."""
    found = {node.value for node in ast.walk(tree)
             if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found |= {''.join(
        str(part.value) if isinstance(part, ast.Constant) else PLACEHOLDER
        for part in node.values)
        for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)}
    return {re.sub(r'%(\(\w+\))?[.\d]*[sdr]', PLACEHOLDER, text)
            for text in found}


def message_parts() -> set[str]:
    """Return the parts between ": " of all texts, and errors of the kernel."""
    found = {part for path in (test_meta.TOP / 'gpgpu_plugin').rglob('*.py')
             for text in texts(ast.parse(path.read_text(encoding='utf-8')))
             for part in text.split(': ') if ' ' in part}
    return found | {os.strerror(number) for number in errno.errorcode}


# Each is compared with each quote, and re forgets patterns after some hundred.
@functools.cache
def pattern(part: str) -> re.Pattern[str]:
    """Return what matches a message that a part of a text makes."""
    return re.compile('.+'.join(map(re.escape, part.split(PLACEHOLDER))))


def is_message(quote: str, parts: set[str]) -> bool:
    """Return whether the parts of a quote with words are parts of messages."""
    return all(any(
        re.search('.+'.join(map(re.escape, words.split('...'))), part)
        or (re.match(r'\w{3}', part) and pattern(part).fullmatch(words))
        for part in parts)
        for words in quote.rstrip(':').split(': ') if ' ' in words)


def quotes(page: str) -> list[str]:
    """Return the literals of a page that are neither commands nor options."""
    literals = [' '.join(text.split()) for text in re.findall(
        '``(.+?)``', test_meta.doc(page), re.DOTALL)]
    return [text for text in literals if ' ' in text
            and not re.match(r'gpgpu-manage |device list |\[', text)]


class TestTroubleshooting(base.BaseTestCase):

    PAGES = ('guest-errors', 'refusals', 'service-errors',
             'troubleshooting', 'why-not')

    def test_every_quoted_message_is_in_the_code(self):
        parts = message_parts()
        found = {quote for page in self.PAGES
                 for quote in quotes(f'admin/{page}.rst')}
        self.assertEqual(NOVA_MESSAGES, {
            quote for quote in found if not is_message(quote, parts)})
        self.assertGreater(len(found), 60)

    def test_stale_quote_is_found(self):
        parts = message_parts()
        for quote in ('since before the guest, ... was ...',
                      'its IOMMU group ... also holds ...',
                      'the kernel did not answer in 60 s',
                      'reset: cannot write \'1\': Wrong ioctl'):
            self.assertFalse(is_message(quote, parts), quote)


class TestSecurity(base.BaseTestCase):

    def test_tables_have_what_the_helper_writes_and_reads(self):
        rows = re.findall(r'\* - ``(.+?)``\n', test_meta.doc(
            'admin/security.rst'))
        self.assertEqual(
            [*dict.fromkeys(rule.path for rule in sysfs.RULES),
             *(rule.path for rule in sysfs.READS)], rows)


class TestWhyNot(base.BaseTestCase):

    def test_table_has_the_changes_of_each_reason(self):
        found: dict[str, set[str]] = {}
        table = test_meta.doc('admin/why-not.rst').partition(
            'Changes that are tried')[2].partition('\nA change of')[0]
        for reasons, changes in re.findall(
                r'\* - (.+?)\n +- (.+?)(?=\n +\* -|\Z)', table, re.DOTALL):
            for reason in re.findall('``(.+?)``', reasons):
                found.setdefault(reason, set()).update(
                    re.findall('``(.+?)``:', changes))
        self.assertEqual(found, {
            str(reason): {change.kind for change in changes}
            for reason, changes in why_not.ADVICE.items()})


class TestCleaning(base.BaseTestCase):

    def test_table_has_the_models_registers_and_defaults(self):
        found = {}
        for models, *cells in re.findall(
                r'\* - (.+\(.+\))\n +- (.+ = .+)\n +- (.+ = .+)\n +- (.+)\n',
                test_meta.doc('admin/cleaning-gpus.rst')):
            for ids in re.findall(r'\((.+?)\)', models):
                for part in ids.split(', '):
                    first, _, last = part.partition(' to ')
                    found[int(first, 16), int(last or first, 16)] = cells
        expected = {}
        for first, last, architecture in nvidia._MODELS:
            registers = nvidia.REGISTERS[architecture]
            expected[first, last] = [
                f'{registers.boot:x} = {registers.booted:x}',
                f'{registers.clear:x} = {nvidia.CLEARED:x}',
                ', '.join('PPCIe off' if name == cleaning.PPCIE
                          else f'{name.upper()} {value}' for name, value in
                          cleaning._DEFAULTS[architecture].items())]
        self.assertEqual(expected, found)


class TestUninstall(base.BaseTestCase):

    def test_providers_are_deleted_while_nova_compute_is_stopped(self):
        section = test_meta.doc('admin/day2.rst').partition(
            '\nUninstall\n')[2]
        commands = re.findall(r'(?m)^ +[#$] (.+)$', section)
        start, stop, delete = (
            commands.index(command) for command in (
                'systemctl start nova-compute', 'systemctl stop nova-compute',
                'openstack resource provider delete UUID'))
        self.assertEqual([stop, delete, start], sorted([start, stop, delete]))
        self.assertNotIn('restart nova-compute', ' '.join(commands))


class TestDoctor(base.BaseTestCase):

    PAGE = 'admin/doctor.rst'

    def test_table_has_each_drift_as_the_code_has_it(self):
        found = [
            tuple(' '.join(cell.split()) for cell in cells)
            for cells in re.findall(
                r'   \* - ``([a-z_]+)``\n     - (critical|warning|unknown)\n'
                r'     - ((?:.+\n(?:       .+\n)*))'
                r'     - ((?:.+\n(?:       .+\n)*))',
                test_meta.doc(self.PAGE))]
        self.assertEqual([
            (kind.name, kind.severity, kind.meaning, (
                f'``{kind.repair}``' if kind.repair else 'none')
             + f': {kind.advice}.') for kind in drift.KINDS], found)

    def test_page_has_each_exit_code_and_repair(self):
        page = test_meta.doc(self.PAGE)
        for code in (doctor.DRIFT_LEFT, doctor.ALL_REPAIRED,
                     doctor.NOT_EXAMINED):
            self.assertIn(f'   * - {code}\n', page)
        for repair in drift.Repair:
            self.assertRegex(page, rf'(?m)^``.*\b{repair}\b.*``$')


class TestMap(base.BaseTestCase):

    PICTURE = 'doc/source/images/map.png'

    def test_picture_is_small_and_shown(self):
        picture = (test_meta.TOP / self.PICTURE).read_bytes()
        self.assertEqual(b'\x89PNG', picture[:4])
        self.assertLess(len(picture), 200_000)
        self.assertIn('../images/map.png', test_meta.doc('admin/map.rst'))
        self.assertIn(f']({self.PICTURE})', (
            test_meta.TOP / 'README.md').read_text(encoding='utf-8'))
