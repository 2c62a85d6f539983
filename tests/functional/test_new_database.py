# SPDX-License-Identifier: Apache-2.0
"""A database that is made anew, while the guests of the cloud run.

The steps are those of doc/source/admin/new-database.rst.
"""

from __future__ import annotations

import csv
import json
import pathlib

from tests.fixtures import cloud
from tests.fixtures import cloud_views


class NewDatabaseTest(cloud.GpuCloud):
    """A host with keys, a running server of two GPUs and usage that ended."""

    def setUp(self) -> None:
        super().setUp()
        # It is there until the conductor has ended.
        self.folder = pathlib.Path(self.state_path, 'controller')
        self.keys = self.folder / 'keys'
        self.keys.mkdir(parents=True)
        self._sign_calls()
        self.delete(self.boot(self.flavor(H100=1)))
        self.server = self.boot(self.flavor(H100=2))
        self.wait_states(assigned=2, available=6)
        self.before = self.devices_of(self.server)
        self.usages = self.running()
        self.exported = self.export('before.csv')
        self.assertEqual(1, len(self.exported))

    def _sign_calls(self) -> None:
        self.conductor.stop()
        url = self.conductor.database.engine.url
        self._controller('key', 'init', url=url)
        self._make_keys(url)
        self.flags(sign_calls=True, keys_path=str(self.keys), group='gpgpu')
        self.conductor.start()
        self._restart_nova()

    def _restart_nova(self) -> None:
        """Restart the services that have keys."""
        self.restart_scheduler('ComputeFilter', 'GpuFilter')
        self.restart_compute()

    def _controller(self, *arguments: str, url: object) -> None:
        """Run gpgpu-manage with the database of gpgpu.conf."""
        path = self.folder / 'gpgpu.conf'
        path.write_text(f'[gpgpu]\nkeys_path = {self.keys}\n'
                        f'[database]\nconnection = {url}\n')
        cloud_views.run(['--config-file', str(path), *arguments])

    def _make_keys(self, url: object) -> None:
        for arguments in (('operator', 'root'), ('scheduler', 'control1'),
                          ('host', 'gpu1')):
            self._controller('key', 'create', *arguments, url=url)

    def running(self) -> list[tuple[str, ...]]:
        """Return all usage that goes on, but for its length."""
        return sorted(
            tuple(row[name] for name in (
                'uuid', 'instance_uuid', 'project_id', 'user_id', 'flavor',
                'host', 'address', 'variant'))
            for row in self.listing('usage', 'list', '--long')
            if row['ended_at'] is None)

    def export(self, name: str) -> set[str]:
        """Export usage to a new file; return the UUIDs in it."""
        path = self.folder / name
        self.manage('usage', 'export', str(path))
        with path.open(encoding='utf-8', newline='') as file:
            return {row['uuid'] for row in csv.DictReader(file)}

    def make_anew(self) -> None:
        """Do what the page says after the usage was exported."""
        self.conductor.stop()
        url = f'sqlite:///{self.folder}/new.sqlite'
        self._controller('db', 'sync', url=url)
        self._controller('db', 'restored', '--cloud', self.cloud_uuid(),
                         url=url)
        for kind in ('operator', 'scheduler', 'host'):
            (self.keys / f'{kind}.key').unlink()
        self._make_keys(url)
        self.conductor.use(url)
        self.conductor.start()
        self.manage('variant', 'create', 'H100', *cloud.HGX_H100)

    def cloud_uuid(self) -> str:
        """Return the UUID that the file of the host names."""
        book = pathlib.Path(self.state_path, 'gpu1.json').read_bytes()
        return str(json.loads(book)['cloud'])

    def test_running_guest_keeps_its_gpus_and_its_usage(self) -> None:
        self.make_anew()
        self.assertEqual([], self.listing('host', 'list'))
        self._restart_nova()
        self.run_once('gpu1')
        self.assertEqual(self.before, self.devices_of(self.server))
        self.wait_states(assigned=2, available=6)
        self.wait_inventory(8, 0)
        self.assertEqual(self.usages, self.running())
        self.wait_offered()
        other = self.boot(self.flavor(H100=6))
        self.assertEqual(set(), self.before & self.devices_of(other))
        self.boot(self.flavor(H100=1), 'ERROR')
        self.delete(self.server, other)
        self.wait_states(available=8)
        found = self.export('after.csv')
        self.assertLess({uuid for uuid, *_ in self.usages}, found)
        self.assertEqual((8, set()), (len(found), found & self.exported))

    def test_old_keys_are_refused(self) -> None:
        old = {path.name: path.read_bytes()
               for path in self.keys.glob('*.key')}
        self.make_anew()
        new = (self.keys / 'operator.key').read_bytes()
        (self.keys / 'operator.key').write_bytes(old['operator.key'])
        with self.assertRaisesRegex(cloud_views.CommandFailed, 'refused'):
            self.manage('host', 'list')
        (self.keys / 'operator.key').write_bytes(new)
        self.restart_compute()
