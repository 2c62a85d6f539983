#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Group ``[gpgpu]``: what every process of the plugin shares."""

from __future__ import annotations

from oslo_config import cfg
from oslo_config import types

GROUP = cfg.OptGroup(
    'gpgpu', title='GPU plugin',
    help='Options shared by gpgpu-conductor, nova-compute, nova-scheduler '
         'and gpgpu-manage.')

OPTS = [
    cfg.StrOpt(
        'transport_url', secret=True,
        help='Message transport between the plugin\'s parts, in '
             'oslo.messaging form. One for the whole cloud, also with '
             'several Nova cells. Default: [DEFAULT] transport_url.'),
    cfg.StrOpt(
        'topic_prefix', default='gpgpu', regex='^[A-Za-z0-9_.-]{1,64}$',
        help='Beginning of the names of the plugin\'s message queues. Give '
             'each cloud its own where several share one virtual host of a '
             'broker.'),
    cfg.IntOpt(
        'rpc_timeout', default=10, min=1,
        help='Seconds to wait for gpgpu-conductor, in nova-compute and '
             'gpgpu-manage.'),
    cfg.IntOpt(
        'scheduler_rpc_timeout', default=3, min=1,
        help='Seconds that one scheduling decision waits for '
             'gpgpu-conductor before GPU requests are refused.'),
    cfg.IntOpt(
        'claim_lease', default=600, min=10,
        help='Seconds after which a claim that was not activated may be '
             'ended by its host when no build of it is running there.'),
    cfg.IntOpt(
        'scan_interval', default=60, min=1,
        help='Seconds between two looks of nova-compute at its devices. A '
             'look that finds nothing new makes no call.'),
    cfg.StrOpt(
        'sysfs_root', default='/sys',
        help='Where nova-compute reads the host\'s devices. It changes '
             'those of /sys alone: with another root none is made ready.'),
    cfg.ListOpt(
        'sriov_numvfs', default=[],
        item_type=types.String(
            regex='^[0-9a-f]{4}:[0-9a-f]{4}=[1-9][0-9]*$', ignore_case=True),
        help='How many VFs nova-compute gives each card that has none, such '
             'as after a boot of the host: VENDOR:DEVICE=COUNT in hex, '
             'repeated with commas, such as 8086:56c0=4. NVIDIA\'s driver '
             'is asked by its program sriov-manage, which gives a card all '
             'that it can have, whatever the number.'),
    cfg.StrOpt(
        'state_path', default='/var/lib/nova/gpgpu',
        help='Folder in which nova-compute keeps releases that could not '
             'yet be delivered and, for the fake driver, its machines.'),
]

FAKE_GROUP = cfg.OptGroup(
    'gpgpu_fake', title='Fake GPUs',
    help='Options of the driver gpgpu.GpuFakeDriver.')

FAKE_OPTS = [
    cfg.StrOpt(
        'machine', default='hgx-h100-8',
        help='Machine of gpgpu_plugin.host.fake.machines that a host pretends '
             'to be, or the path of a file of "gpgpu-manage pci record".'),
    cfg.DictOpt(
        'machines', default={},
        help='Machine by host name, where it differs: host1:NAME,host2:NAME.'),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the groups; harmless when done before."""
    # By name: oslo.config copies a group that it is given but not the table
    # of options in it, so overrides in one configuration would be the next's.
    conf.register_opts(OPTS, group=GROUP.name)
    conf.register_opts(FAKE_OPTS, group=FAKE_GROUP.name)


def check(conf: cfg.ConfigOpts) -> None:
    """Read all values, which oslo.config else does when they are needed.

    :raises oslo_config.cfg.Error: one of them is not valid; it says which
    """
    for group, options in list_opts():
        for option in options:
            getattr(conf[group.name], option.dest)


def numvfs(conf: cfg.ConfigOpts) -> dict[str, int]:
    """``sriov_numvfs`` by ``vendor:device`` in lower case."""
    return {ids.lower(): int(count) for ids, _, count in (
        each.partition('=') for each in conf.gpgpu.sriov_numvfs)}


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """For oslo-config-generator."""
    return [(GROUP, OPTS), (FAKE_GROUP, FAKE_OPTS)]
