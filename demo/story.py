# SPDX-License-Identifier: Apache-2.0
"""The story: four GPU servers, from their first report to the last delete."""

from __future__ import annotations

import re
import threading
import typing

import fixtures
from nova import exception as nova_exception

from demo import teller as teller_mod
from gpgpu_plugin import exception
from gpgpu_plugin.objects import claim as claim_obj
from tests.fixtures import cloud

SHOWN = ('-c', 'Host', '-c', 'Address', '-c', 'Variant', '-c', 'Shown State',
         '-c', 'Used By')


class Story(cloud.GpuCloud):
    """Runs once, as a test case: Nova's fixtures want one."""

    machines = {'hgx': 'hgx-h100-8', 'amd': 'amd-v620-2',
                'pcie': 'pcie-l40s-4', 'vgpu': 'nvidia-t4-2'}
    variants = ()
    cleaned_before = False
    kinds = {'H100': ('hgx', '10de', '2330', 8),
             'V620': ('amd', '1002', '73a1', 2),
             'L40S': ('pcie', '10de', '26b9', 4)}

    teller: teller_mod.Teller
    log_path: str
    map_path: str

    def setUp(self) -> None:
        self.teller.say(
            'This is a whole OpenStack compute cloud in one process: Nova\'s '
            'API, scheduler, conductor and four nova-compute services, and '
            'Placement, all real. The hosts have no GPU: each reads a '
            'directory that looks like the /sys of a GPU server.')
        super().setUp()
        self.addCleanup(self._keep_log)

    def _keep_log(self) -> None:
        with open(self.log_path, 'a') as log:
            log.write(self.stdlog.logger.output)

    def tell(self) -> None:
        """Tell all chapters."""
        self._hosts()
        self._variants()
        servers = self._boot()
        self._does_not_fit()
        self._filter_refuses()
        self._failed_boot()
        self._race()
        self._release(servers)
        self._why_not()
        self._vgpus()
        self._map()

    # -- telling ------------------------------------------------------------

    def _run(self, *arguments: str) -> str:
        output = self.manage(*arguments)
        self.teller.command(arguments, output)
        return output

    def _holds(self, text: str, condition: typing.Any) -> None:
        self.teller.expect(text)
        try:
            reached = self.wait_for(condition, text)
        except AssertionError:
            reached = False
        self.teller.check(text, reached)

    def _placement(self) -> None:
        rows: list[tuple[str, object]] = []
        for variant, (host, *_) in self.kinds.items():
            total, reserved = self.inventory(host, variant)
            rows.append((f'{host}_gpu_{variant}',
                         f'total {total}, reserved {reserved}, '
                         f'used {self.usage(host, variant)}'))
        self.teller.facts('Placement:', rows)

    # -- chapters -----------------------------------------------------------

    def _hosts(self) -> None:
        self.teller.heading('Four hosts report what they found')
        self._run('host', 'list')
        devices = self.devices()
        self.teller.check(
            f'{len(devices)} devices are known; none is offered before you '
            'say which kinds to offer',
            devices and {d['shown_state'] for d in devices} == {'unmanaged'})

    def _variants(self) -> None:
        self.teller.heading('An operator names the devices to offer as GPUs')
        for name, (_, vendor, device, _) in self.kinds.items():
            self._run('variant', 'create', name, '--vendor', vendor,
                      '--device', device)
        self._unsupported()
        for name, (host, _, _, gpus) in self.kinds.items():
            self._holds(
                f'{host}: {gpus} {name} were cleaned, as they are new, and '
                f'Placement offers them, without a restart',
                lambda h=host, n=name, c=gpus:
                self.inventory(h, n) == (c, 0))
        self._run('group', 'list')
        self._placement()

    def _unsupported(self) -> None:
        self.teller.say(
            'The H100 are on a board with NVSwitches, and nobody activates '
            'partitions of it for the guests. The plugin says so and does '
            'not offer them. An operator with tools for that accepts it.')
        device = next(
            device for device in self.devices('--host', 'hgx')
            if 'NVSwitches' in (device['reason'] or ''))
        self._run('device', 'show', device['uuid'], '-c', 'Reason')
        self._run('variant', 'set', 'H100', '--unsupported-ok',
                  '-c', 'Name', '-c', 'Devices', '-c', 'Unsupported Ok')

    def _boot(self) -> list[dict[str, typing.Any]]:
        self.teller.heading('Servers boot through Nova\'s REST API')
        wanted: list[dict[str, int]] = [
            {'H100': 2}, {'H100': 4}, {'V620': 2}, {'L40S': 1}, {}]
        servers = []
        for gpus in wanted:
            server = self.boot(self.flavor(**gpus))
            servers.append(server)
            name = ' and '.join(f'{n} {v}' for v, n in gpus.items())
            self.teller.check(
                f'a server with {name or "no GPU"} is ACTIVE on '
                f'{server["OS-EXT-SRV-ATTR:host"]} and has '
                f'{len(self.devices_of(server))} devices',
                len(self.devices_of(server)) == sum(gpus.values()))
        assigned = [address for s in servers for address in self.devices_of(s)]
        self.teller.check(
            'no device has two owners', len(assigned) == len(set(assigned)))
        self._run('device', 'list', '--host', 'hgx', *SHOWN)
        self._placement()
        self.teller.check('Placement counts the same: 6 H100 are used',
                          self.usage('hgx', 'H100') == 6)
        return servers

    def _does_not_fit(self) -> None:
        self.teller.heading('A request that does not fit')
        self.teller.say(
            'Two H100 are left and four are asked for: Placement has no '
            'candidate, so no scheduler filter runs. The conductor\'s counts '
            'say why.')
        server = self.boot(self.flavor(H100=4), 'ERROR')
        self.teller.check(f'Nova says: {server["fault"]["message"].strip()}',
                          'No valid host' in server['fault']['message'])
        self._run('group', 'list', '--variant', 'H100')
        group, = self.listing('group', 'list', '--variant', 'H100')
        self.teller.check('the group has 2 of 8 left',
                          (group['remaining'], group['total']) == (2, 8))
        self.delete(server)

    def _filter_refuses(self) -> None:
        self.teller.heading('A request that Placement cannot judge')
        self.teller.say(
            'Placement cannot express that GPUs must be below one PCIe '
            'switch. Where the free GPUs are not, GpuFilter refuses the host '
            'and logs the name of the reason.')
        flavor = self.flavor_of({'resources:CUSTOM_GPU_L40S': '3',
                                 'gpgpu:topology': 'same_switch'})
        server = self.boot(flavor, 'ERROR')
        lines = [line for line in self.stdlog.logger.output.splitlines()
                 if re.search('topology_same_switch', line)]
        self.teller.facts('nova-scheduler\'s log:', [
            ('', line.partition('] ')[2]) for line in lines[:1]])
        self.teller.check('the reason is topology_same_switch', lines)
        self.delete(server)

    def _failed_boot(self) -> None:
        self.teller.heading('A boot that fails is undone')
        self.teller.say('The hypervisor fails after the devices were claimed '
                        'and prepared.')
        before = self.bound_drivers('pcie')

        def spawn(*args: object, **kwargs: object) -> None:
            raise nova_exception.VirtualInterfaceCreateException('demo')
        with fixtures.MonkeyPatch('nova.virt.fake.FakeDriver.spawn', spawn):
            server = self.boot(self.flavor(L40S=2), 'ERROR')
        self._holds('the database: 3 L40S are available again', lambda:
                    self.states('pcie', 'L40S').get('available') == 3)
        self._holds('Placement: 1 is used, as before',
                    lambda: self.usage('pcie', 'L40S') == 1)
        self.teller.check('the host: every device has the driver it had',
                          self.bound_drivers('pcie') == before)
        self.delete(server)

    def _race(self) -> None:
        self.teller.heading('Two claims race for the last two H100')
        barrier = threading.Barrier(2)
        granted: list[claim_obj.Claim] = []
        denied: list[str] = []

        def claimer() -> None:
            barrier.wait()
            try:
                granted.append(self.claim_directly('hgx', 2))
            except exception.ClaimDenied as refusal:
                denied.append(refusal.reason)
        claimers = [threading.Thread(target=claimer) for _ in range(2)]
        for thread in claimers:
            thread.start()
        for thread in claimers:
            thread.join()
        self.teller.check('one gets them', len(granted) == 1)
        self.teller.check(f'the other is told why: {", ".join(denied)}',
                          denied == ['not_enough_available'])
        for claim in granted:
            self.abandon(claim)

    def _release(self, servers: list[dict[str, typing.Any]]) -> None:
        self.teller.heading('All servers are deleted')
        self.delete(*servers)
        for name, (host, _, _, gpus) in self.kinds.items():
            self._holds(
                f'{host}: {gpus} {name} were cleaned and are available',
                lambda h=host, n=name, c=gpus:
                self.states(h, n) == {'available': c})
            self._holds(
                f'{host}: Placement offers all and counts none as used',
                lambda h=host, n=name, c=gpus:
                self.inventory(h, n) == (c, 0) and self.usage(h, n) == 0)
        self._run('device', 'list', '--host', 'hgx', *SHOWN)
        self._placement()

    # -- vGPUs --------------------------------------------------------------

    def _why_not(self) -> None:
        self.teller.heading('Why not, and what would help')
        self.teller.say(
            'One L40S is free on each of two NUMA nodes, and a server wants '
            'two on one node. gpgpu-manage why-not names the reason and the '
            'instance that is in the way; when it is gone, the server fits.')
        one = self.flavor(L40S=1)
        servers = [self.boot(one) for _ in range(4)]
        nodes = {row['used_by']: row['numa_node']
                 for row in self.devices('--variant', 'L40S')}
        for node in (0, 1):
            self.delete(next(server for server in servers
                             if nodes[server['id']] == node))
        self.wait_inventory(4, 0, 'pcie', 'L40S')
        flavor = self.flavor_of({'resources:CUSTOM_GPU_L40S': '2',
                                 'gpgpu:topology': 'same_numa'})
        failed = self.boot(flavor, 'ERROR')
        self._run('why-not', '--server', failed['id'])
        [moving] = [row['detail'].split()[2] for row in self.listing(
            'why-not', '--server', failed['id']) if row['reason'] == 'move']
        self.delete(failed, {'id': moving})
        self.wait_inventory(4, 0, 'pcie', 'L40S')
        server = self.boot(flavor)
        self.teller.check('after that instance has gone, the server is active '
                          'with two L40S', len(self.devices_of(server)) == 2)
        self.delete(server, *(
            left for left in servers if left['id'] != moving
            and left['id'] in {row['used_by'] for row in self.devices(
                '--variant', 'L40S')}))
        self.wait_inventory(4, 0, 'pcie', 'L40S')

    def _vgpus(self) -> None:
        self.teller.heading('Two types of vGPU on one group')
        self.teller.say(
            'A host has two Tesla T4. Each is assigned as a whole, or '
            'partitioned into vGPUs of one type. An operator enables types.')
        self._run('variant', 'create', 'T4', '--vendor', '10de',
                  '--device', '1eb8')
        for name in ('T4-1Q', 'T4-4Q'):
            self.manage('vgpu-type', 'enable', 'T4', name)
        self._capacity('no vGPU exists', {'T4': 2, '1Q': 32, '4Q': 8})
        small = self.boot(self._flavor_of_vgpus(T4_1Q=2))
        self._capacity('a server has two T4-1Q: 14 more fit on that GPU',
                   {'T4': 1, '1Q': 30, '4Q': 4})
        large = self.boot(self._flavor_of_vgpus(T4_4Q=1))
        self._capacity('another server has a T4-4Q, on the other GPU',
                   {'T4': 0, '1Q': 14, '4Q': 3})
        self._run('vgpu-type', 'list', '--variant', 'T4', '--enabled')
        self.delete(large)
        self._capacity('that server is deleted, and its mdev is removed', {
            'T4': 1, '1Q': 30, '4Q': 4})
        self._conflict()
        self.delete(small)
        self._capacity('everything is available again',
                       {'T4': 2, '1Q': 32, '4Q': 8})
        self.teller.check('no mdev is left', not any(
            (self.sysfs('vgpu') / 'bus/mdev/devices').iterdir()))

    def _conflict(self) -> None:
        self.teller.say(
            'One GPU is free. A whole T4 fits, and so does a T4-4Q, but not '
            'both. Placement cannot know that; the claim refuses it.')
        server = self.boot(self._flavor_of_vgpus(T4_4Q=1, whole=1), 'ERROR')
        lines = [line for line in self.stdlog.logger.output.splitlines()
                 if 'denied: type_conflict' in line]
        self.teller.facts('gpgpu-conductor\'s log:', [
            ('', line.partition('] ')[2]) for line in lines[:1]])
        self.teller.check('the reason is type_conflict', lines)
        self.delete(server)

    def _flavor_of_vgpus(self, whole: int = 0, **counts: int) -> str:
        classes = {f'CUSTOM_VGPU_T4_{name}': count
                   for name, count in counts.items()}
        if whole:
            classes['CUSTOM_GPU_T4'] = whole
        return self.flavor_of({f'resources:{name}': str(count)
                               for name, count in classes.items()})

    def _capacity(self, what: str, expected: dict[str, int]) -> None:
        self._holds(
            what + '; Placement has left ' + ', '.join(
                f'{count} {name}' for name, count in expected.items()),
            lambda: self.unallocated('vgpu', 'T4') == expected)

    # -- map ----------------------------------------------------------------

    def _map(self) -> None:
        self.teller.heading('A map of all GPUs')
        self.teller.say(
            'Five servers boot again, and an operator disables a device. '
            'Then the map is drawn, as letters and as a page for browsers.')
        servers = [self.boot(flavor) for flavor in (
            self.flavor(H100=4), self.flavor(H100=1), self.flavor(L40S=2),
            self._flavor_of_vgpus(T4_4Q=2), self._flavor_of_vgpus(T4_1Q=3))]
        device = self.devices('--host', 'amd')[0]['uuid']
        self.manage('hold', 'add', device, '--kind', 'disabled')
        self._run('map')
        self._run('map', '--html', self.map_path)
        with open(self.map_path, encoding='utf-8') as file:
            page = file.read()
        self.teller.check(
            f'the page {self.map_path} shows every server',
            all(server['id'] in page for server in servers))
        self.manage('hold', 'remove', device, '--kind', 'disabled')
        self.delete(*servers)
