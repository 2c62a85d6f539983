# SPDX-License-Identifier: Apache-2.0
"""The commands and files of doc/source/install.rst, run as they stand there.

They run in a mount namespace with a copy of /etc, so that users, owners and
modes are real, and nothing of the machine changes but what the servers keep.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import uuid

import fixtures
import sqlalchemy as sa
from oslotest import base

from tests.fixtures import patience
from tests.fixtures import services

TOP = pathlib.Path(__file__).parents[2]
PAGE = TOP / 'doc' / 'source' / 'install.rst'
CONF = '/etc/gpgpu/gpgpu.conf'
NOVA_CONF = '/etc/nova/nova.conf'

# Stands for systemd: a unit runs as its user with its command.
SYSTEMCTL = r"""#!/bin/bash
echo "$*" >> "$SCRATCH/systemctl"
[ "$1 $2" = "enable --now" ] || exit 0
unit=/etc/systemd/system/$3.service
value() { sed -n "s/^$1=//p" "$unit"; }
# The path to this environment may be closed to other users.
setpriv --reuid "$(value User)" --regid "$(value Group)" --init-groups \
    --inh-caps +dac_read_search --ambient-caps +dac_read_search \
    $(value ExecStart) > "$SCRATCH/conductor" 2>&1 &
echo $! > "$SCRATCH/pid"
until gpgpu-manage conductor ping --this-host > /dev/null 2>&1; do
    kill -0 $! || exit 1
done
"""
PREPARE = r"""set -eu
mount --make-rprivate /
cp -a /etc "$SCRATCH/etc"
mount --bind "$SCRATCH/etc" /etc
echo '127.0.0.1 controller' >> /etc/hosts
rm -rf /etc/gpgpu
install -d /etc/nova /etc/systemd/system
id nova > /dev/null 2>&1 || useradd --system nova
id gpgpu > /dev/null 2>&1 && userdel gpgpu
export PATH="$SCRATCH/bin:$PATH"
trap 'kill $(cat "$SCRATCH/pid") 2> /dev/null || true' EXIT
cd "$SCRATCH"
set -x
"""
CHECKS = r"""
stat -c '%n %U:%G %a' /etc/gpgpu/gpgpu.conf /etc/gpgpu/keys/*.key \
    > "$SCRATCH/modes"
(gpgpu-status upgrade check --json || true) > "$SCRATCH/checks"
"""


def section(title: str) -> str:
    """Return a section of the page."""
    found = re.search(rf'(?ms)^{title}\n=+\n(.*?)(?=^[^\n]+\n===|\Z)',
                      PAGE.read_text())
    assert found, title
    return found[1]


def steps(title: str) -> list[tuple[str, str]]:
    """Return the language and the text of each block of a section."""
    return [(language, textwrap.dedent(text)) for _, language, text
            in re.findall(r'(?m)^( *)\.\. code-block:: (\w+)\n\n'
                          r'((?:\1 +\S.*\n|\n)+)', section(title))]


def script(title: str, files: list[str]) -> str:
    """Return the blocks of a section as a script of a shell.

    :param files: those that the blocks of INI are written to, in order
    """
    lines, left = [], list(files)
    for language, text in steps(title):
        if language == 'ini':
            lines.append(f"cat > {left.pop(0)} << 'END'\n{text}END\n")
        if language == 'console':
            lines += [
                # It exits 1 or 2: there is neither a Placement nor a host.
                command + ' || true' * command.startswith('gpgpu-status')
                for command in re.findall(r'(?m)^# ((?:.*\\\n)*.*)$', text)
                if '/bin/pip install' not in command]
    assert not left, left
    return '\n'.join(lines) + '\n'


class InstallTest(base.BaseTestCase):

    def setUp(self) -> None:
        super().setUp()
        services.require(self, services.MARIADB, services.RABBITMQ)
        if os.geteuid() != 0:
            services.missing(self, 'only root can have a copy of /etc')
        for program in ('unshare', 'rabbitmqctl', 'mariadb', 'setpriv'):
            if shutil.which(program) is None:
                services.missing(self, f'{program} is not installed')
        self.name = f'docs{uuid.uuid4().hex[:8]}'
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.folder.chmod(0o755)
        nova = self.folder / 'nova'
        nova.mkdir()
        (nova / 'bin').symlink_to(pathlib.Path(sys.prefix) / 'bin')
        (nova / 'etc').symlink_to(TOP / 'etc')
        programs = self.folder / 'bin'
        programs.mkdir()
        (programs / 'systemctl').write_text(SYSTEMCTL)
        (programs / 'systemctl').chmod(0o755)
        self.addCleanup(self.drop)

    def drop(self) -> None:
        """Remove what the commands made on the servers."""
        for kind in ('vhost', 'user'):
            subprocess.run(['rabbitmqctl', f'delete_{kind}', self.name],
                           capture_output=True, check=False)
        engine = sa.create_engine(services.MARIADB)
        with engine.begin() as connection:
            connection.execute(sa.text(
                f'DROP DATABASE IF EXISTS {self.name}'))
            connection.execute(sa.text(
                f"DROP USER IF EXISTS '{self.name}'@'%'"))
        engine.dispose()

    def own_names(self, text: str) -> str:
        """Return a script with names that nobody else has on the servers."""
        for words in ('CREATE DATABASE gpgpu', "CREATE USER gpgpu@'%'",
                      'ON gpgpu.*', "TO gpgpu@'%'", 'add_vhost gpu',
                      'add_user gpgpu', '-p gpu gpgpu', ':5672/gpu',
                      'controller/gpgpu?', '//gpgpu:SECRET@'):
            self.assertIn(words, text)
            text = text.replace(words, re.sub(
                r'\bgpgpu\b|\bgpu\b', self.name, words))
        return text.replace('/opt/nova', str(self.folder / 'nova'))

    def run_page(self) -> None:
        commands = self.own_names(
            script('Controllers', [CONF, NOVA_CONF]) + CHECKS
            + script('Compute hosts', [NOVA_CONF])
            + CHECKS.replace('/modes', '/host-modes').replace(
                '/checks', '/host-checks'))
        done = subprocess.run(
            ['unshare', '--mount', 'bash', '-c', PREPARE + commands],
            env={**os.environ, 'SCRATCH': str(self.folder)},
            # For one program; these are more than twenty.
            capture_output=True, text=True, timeout=20 * patience.LONG,
            check=False)
        self.said = done.stdout
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def checks(self, name: str) -> dict[str, int]:
        """Return the results of gpgpu-status."""
        return {check['check']: check['result'] for check in json.loads(
            (self.folder / name).read_text())['checks']}

    def test_commands_and_files_of_the_page_work_in_its_order(self) -> None:
        self.run_page()
        self.assertEqual(
            ['daemon-reload', 'enable --now gpgpu-conductor',
             'restart nova-scheduler nova-conductor nova-api',
             'restart nova-compute'],
            (self.folder / 'systemctl').read_text().splitlines())
        self.assertEqual(
            [f'{CONF} root:gpgpu 640',
             '/etc/gpgpu/keys/host.key nova:nova 600',
             '/etc/gpgpu/keys/master.key gpgpu:gpgpu 600',
             '/etc/gpgpu/keys/operator.key root:root 600',
             '/etc/gpgpu/keys/scheduler.key nova:nova 600'],
            (self.folder / 'host-modes').read_text().splitlines())
        self.assertIn('| NVIDIA_L40S ', self.said)
        controller = self.checks('checks')
        for name in ('Database schema', 'Conductors', 'Keys on this machine',
                     'Keys of hosts and schedulers',
                     'Filters of nova-scheduler', '[gpgpu] of nova.conf',
                     'Notifications of Nova'):
            self.assertEqual(0, controller[name], (name, controller))
        # The driver of the page gives no guest a real GPU.
        self.assertEqual(
            1, self.checks('host-checks')['Driver of nova-compute'])

    def test_commands_that_are_left_out_are_those_of_pip(self) -> None:
        shown = [command for title in ('Controllers', 'Compute hosts')
                 for language, text in steps(title) if language == 'console'
                 for command in re.findall('(?m)^# (.*)$', text)
                 if '/bin/pip install' in command]
        self.assertEqual(
            ["/opt/nova/bin/pip install '/src/gpgpu_plugin[mysql]'",
             '/opt/nova/bin/pip install /src/gpgpu_plugin'], shown)
