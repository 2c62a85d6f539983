# SPDX-License-Identifier: Apache-2.0
"""Questions of operators, answered by the commands of the documentation."""

from __future__ import annotations

import pathlib
import re
import shlex
import time
import typing

import fixtures
from testtools import content

from gpgpu_plugin.cmd import host as host_cmd
from tests.fixtures import cloud

PAGE = (pathlib.Path(__file__).parents[2]
        / 'doc' / 'source' / 'admin' / 'troubleshooting.rst')
MASKS = (
    (r'\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b', 'UUID'),
    (r'\b0000:[0-9a-f]{2}:[0-9a-f]{2}\.0\b', 'ADDRESS'),
    (r'\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|\+00:00)?', 'TIME'),
    (r'(?m)\| \d+ +\|$', '| SECONDS |'))


def masked(text: str) -> list[str]:
    """Return lines without what differs between two runs."""
    for pattern, name in MASKS:
        text = re.sub(pattern, name, text)
    return text.splitlines()


def examples() -> dict[str, str]:
    """Return the output that the page shows, by the command."""
    found = re.search('(?ms)^Questions and answers\n(.*?)\n^Why did my boot',
                      PAGE.read_text())
    assert found
    lines = [line[3:] for line in found[1].splitlines()
             if line.startswith('   ')]
    shown = '\n'.join(lines).replace('\\\n      ', '')
    return {command.strip(): output for command, output in re.findall(
        r'(?m)^\$ gpgpu-manage (.*)\n((?:[^$\n].*\n?)*)', shown)}


class AnswersTest(cloud.GpuCloud):
    """A server that runs, one that failed, and a GPU that fell off."""

    machines: typing.ClassVar[dict[str, str]] = {
        'gpu1': 'hgx-h100-8', 'gpu2': 'hgx-h100-8'}

    def quarantine(self, host: str) -> None:
        """Let a GPU keep what its guest wrote, over a reset."""
        vfio = self.driver(host).gpu_tracker.backend.kernel.vfio
        vfio.outlasting.update(row['address'] for row in self.devices(
            '--host', host, '--variant', 'H100'))
        self.delete(self.boot(
            self.flavor(H100=1), availability_zone=f'nova:{host}'))
        self.wait_states(host, quarantined=1, available=7)

    def test_commands_of_the_page_print_what_it_shows(self) -> None:
        notes: list[str] = []
        progress = host_cmd._progress

        def note(*args: typing.Any) -> str:
            notes.append(progress(*args))
            return ''
        self.useFixture(fixtures.MonkeyPatch(
            'gpgpu_plugin.cmd.host._progress', note))
        self.quarantine('gpu2')
        gone = self.devices('--host', 'gpu2', '--variant', 'H100')[-1]
        self.unplug('gpu2', gone['address'])
        self.run_once('gpu2')
        self.wait_states('gpu2', missing=1, quarantined=1, available=6)
        zone = {'availability_zone': 'nova:gpu1'}
        self.boot(self.flavor(H100=2), **zone)
        # Placement does not know of this claim, and no filter runs for a
        # forced host.
        claim = self.claim_directly('gpu1', 6)
        failed = self.boot(self.flavor(H100=1), 'ERROR', **zone)
        self.wait_for(
            lambda: self.listing('event', 'list', '--instance', failed['id']),
            'the event of the denial')
        self.abandon(claim)
        self.wait_states('gpu1', assigned=2, available=6)
        names = {'UUID': failed['id'], 'PROJECT': self.api.project_id,
                 'yesterday': '2026-01-01', 'today': '2100-01-01'}
        found = examples()
        self.assertEqual(4, len(found), found)
        figures: list[str] = []
        for command, expected in found.items():
            notes.clear()
            began = time.monotonic()
            printed = self.manage(*[names.get(word, word)
                                    for word in shlex.split(command)])
            figures.append(
                f'{time.monotonic() - began:.2f} s, '
                f'{len(notes) + len(printed.splitlines())} lines: {command}')
            self.assertEqual(
                masked(expected), masked(''.join(
                    f'{note}\n' for note in notes) + printed.strip('\n')),
                f'{command}\n{notes}\n{printed}')
        self.addDetail('figures', content.text_content('\n'.join(figures)))
