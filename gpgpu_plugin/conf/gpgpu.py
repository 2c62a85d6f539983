# SPDX-License-Identifier: Apache-2.0
"""Options of the plugin, in one group for each service that reads them."""

from __future__ import annotations

from oslo_config import cfg
from oslo_config import types

GROUP = cfg.OptGroup(
    'gpgpu', title='GPU plugin',
    help='Options that all services of the plugin and gpgpu-manage read.')

OPTS = [
    cfg.StrOpt(
        'transport_url', secret=True,
        help='URL of the message broker between the parts of the plugin, in '
             'the form that oslo.messaging takes. Use the same broker for '
             'the whole cloud, even with several Nova cells. If this is not '
             'set, [DEFAULT] transport_url is used, which differs from cell '
             'to cell.'),
    cfg.StrOpt(
        'topic_prefix', default='gpgpu', regex='^[A-Za-z0-9_.-]{1,64}$',
        help='Beginning of the names of all message queues of the plugin. '
             'Change the default only if several clouds share one virtual '
             'host of RabbitMQ, which distinguishes queues by their names: '
             'give each cloud another value, and all processes of a cloud '
             'the same one.'),
    cfg.BoolOpt(
        'sign_calls',
        help='Whether calls to gpgpu-conductor are signed, and '
             'gpgpu-conductor refuses those that are not. Without '
             'signatures, whoever can send messages to the broker can take '
             'GPUs of any instance. By default calls are signed, unless the '
             'transport is in-process. All services of a cloud need the same '
             'value: to change it, stop them, and set it everywhere.'),
    cfg.StrOpt(
        'keys_path', default='/etc/gpgpu/keys',
        help='Folder with the keys that sign calls to gpgpu-conductor: '
             'host.key for nova-compute, scheduler.key for nova-scheduler, '
             'operator.key for gpgpu-manage and master.key for '
             'gpgpu-conductor. "gpgpu-manage key" makes them. Only the user '
             'of the service may read its file (mode 0600).'),
    cfg.IntOpt(
        'rpc_timeout', default=10, min=1,
        help='Seconds that nova-compute, nova-scheduler and gpgpu-manage '
             'wait for an answer from gpgpu-conductor. Without an answer '
             'nova-scheduler refuses the request for GPUs '
             '(conductor_unavailable), and other requests may wait behind '
             'it. If there is only one gpgpu-conductor, the value must be '
             'longer than its restart takes: two seconds on an idle machine, '
             'several on a busy one, hence the default. gpgpu-conductor '
             'derives from this option how long a call may wait in the '
             'database, so all services need the same value.'),
    cfg.IntOpt(
        'digest_interval', default=300, min=10,
        help='Seconds, on average, between two calls of a nova-compute that '
             'has nothing else to say: it asks gpgpu-conductor whether both '
             'know the same, which differs only after a message was lost. '
             'Two longer times follow from it. After two intervals without '
             'the end of a build, gpgpu-conductor asks the host whether it '
             'still builds the instance. After three intervals, but not less '
             'than three minutes, without any call, a host is silent: '
             'nothing of it can be claimed, and a nova-compute on another '
             'machine may take its name over, for which "gpgpu-manage host '
             'takeover" need not wait. A '
             'lower value shortens all of them and makes more calls: with the '
             'default, 1,000 idle hosts make about three calls a second. '
             'All services need the same value.'),
]

COMPUTE_GROUP = cfg.OptGroup(
    'gpgpu_compute', title='nova-compute',
    help='Options that nova-compute reads on a host with GPUs.')

COMPUTE_OPTS = [
    cfg.StrOpt(
        'resource_tracker', default='conductor',
        help='Name of the entry point in gpgpu_plugin.resource_trackers by '
             'which nova-compute decides who has which GPU of its host. '
             '"conductor" claims from gpgpu-conductor; packages of third '
             'parties may install others.'),
    cfg.StrOpt(
        'state_path', default='/var/lib/nova/gpgpu',
        help='Folder in which nova-compute stores the assignments of the '
             'host, releases and confirmations that gpgpu-conductor has not '
             'received yet, the baselines of devices, the errors that GPUs '
             'had since their last cleaning, and the machines of the fake '
             'driver. The folder must survive a reboot of the host.'),
    cfg.StrOpt(
        'config_drive_file', regex='^/',
        help='Path of a file about the GPUs of a server that '
             'gpgpu.GpuLibvirtDriver adds to the files of its config drive, '
             'such as /etc/gpgpu.json. cloud-init writes it at this path into '
             'the guest. It is JSON with the variant, the vGPU type and the '
             'PCI addresses in the guest of each GPU. Nova does not write a '
             'config drive again after a resize. By default there is none.'),
    cfg.StrOpt(
        'cleaning_program',
        help='Program that nova-compute runs, as its own user and without '
             'arguments, for each GPU whose cleaning policy names the step '
             '"program". The GPU is bound to its VFIO driver while the '
             'program runs. The environment has GPGPU_ADDRESS, '
             'GPGPU_FUNCTIONS, '
             'GPGPU_STABLE_ID, GPGPU_IDS, GPGPU_MEMORY_MIB and '
             'GPGPU_ASSIGNMENT. The step passes if the program ends with '
             'status 0 within ten minutes.'),
    cfg.StrOpt(
        'knobs_command',
        help='Command that shows and resets the settings that a tenant can '
             'leave in the card itself (knobs), such as ECC or MIG mode: '
             '"sudo -n /usr/local/sbin/gpgpu-knobs-nvidia". nova-compute '
             'runs it, as its own user, for each GPU whose cleaning policy '
             'names the step "knobs". The value is split into words as a '
             'shell does. Two arguments are added: "query" or "reset", and '
             'the address of the GPU, which is bound to its VFIO driver. The '
             'environment is that of cleaning_program. "query" prints one '
             'JSON object of names and values, such as {"ecc": "on", "mig": '
             '"off"}. "reset" sets all of them to their defaults, which take '
             'effect when the step then resets the card. The command must '
             'end within two minutes, with status 0. By default there is '
             'none, and GPUs with such a policy stay dirty.'),
    cfg.StrOpt(
        'scrub_guest_path',
        help='Folder with the guest of the cleaning step "scrub-guest": the '
             'files vmlinuz and initrd.img that tools/scrub-guest/build '
             'writes. The step boots this guest with the GPU, and the guest '
             'writes and verifies all memory of the GPU. Only administrators '
             'may be able to write the files, since the step trusts what '
             'the guest reports. The step needs gpgpu.GpuLibvirtDriver. By '
             'default there is none, and GPUs with such a policy stay dirty.'),
    cfg.IntOpt(
        'scrub_guest_memory', default=512, min=64,
        help='Main memory, in MiB, of each guest of the cleaning step '
             '"scrub-guest". The default suffices for the guest that '
             'tools/scrub-guest/build makes; one with a vendor\'s driver '
             'needs more, such as 4096. The memory is locked while the guest '
             'runs, and up to max_cleanings guests run at once: add it to '
             'Nova\'s reserved_host_memory_mb.'),
    cfg.IntOpt(
        'scrub_guest_timeout', default=1800, min=10, max=86400,
        help='Seconds that a guest of the cleaning step "scrub-guest" may '
             'take; then it is ended, and the step fails. The guest of '
             'tools/scrub-guest/build reads about ten MiB per second, so '
             'that the default suffices for 16 GiB, and a GPU of 80 GiB '
             'needs 10000. A guest with a vendor\'s driver is faster.'),
    cfg.IntOpt(
        'max_cleanings', default=4, min=1, max=64,
        help='Number of GPUs that nova-compute cleans at the same time; the '
             'others wait. A cleaning takes from a second to minutes. More '
             'at once free the GPUs of a large host sooner, and need more '
             'CPU and, for guests of the step "scrub-guest", more memory.'),
    cfg.ListOpt(
        'sriov_numvfs', default=[],
        item_type=types.String(
            regex='^[0-9a-f]{4}:[0-9a-f]{4}=[1-9][0-9]*$', ignore_case=True),
        help='Number of VFs that nova-compute creates on each GPU that has '
             'none, for example after a reboot of the host. The format is '
             'VENDOR:DEVICE=COUNT with hexadecimal PCI IDs, such as '
             '8086:56c0=4; entries are separated by commas. For NVIDIA\'s '
             'driver nova-compute runs sriov-manage, which creates all VFs '
             'that the GPU supports, whatever the number. A GPU that is '
             'assigned, quarantined, retired or not clean yet gets its VFs '
             'after its cleaning. By default no VFs are created.'),
    cfg.BoolOpt(
        'withhold_degraded', default=False,
        help='Whether nova-compute withholds GPUs whose health is "degraded": '
             'no variant matches them, and no new instance gets one, until '
             'their health is "ok". An instance keeps the GPU that it has. By '
             'default such GPUs are offered, since a link that is narrower '
             'than the slot seems to allow may be how the board is wired.'),
]

SCHEDULER_GROUP = cfg.OptGroup(
    'gpgpu_scheduler', title='nova-scheduler',
    help='Options that nova-scheduler reads, and "gpgpu-manage why-not".')

SCHEDULER_OPTS = [
    cfg.StrOpt(
        'weight_policy', default='pack', choices=('pack', 'spread'),
        help='Policy by which GpuWeigher ranks the hosts that can take a '
             'request for GPUs. "pack" keeps what the requests to come need: '
             'it prefers hosts whose free GPUs, vCPUs and RAM are of the '
             'least use to others. "spread" prefers the host with the most '
             'free GPUs, which wears and heats all hosts alike but soon '
             'leaves no host for requests for many GPUs.'),
    cfg.FloatOpt(
        'weight_multiplier', default=100.0,
        help='Factor by which Nova multiplies the weight of GpuWeigher '
             'before it adds the weights of its other weighers, whose '
             'factors are 1.0 (-1.0 for I/O). With the default the GPUs '
             'decide, and RAM, CPU, disk and I/O decide only among hosts '
             'that are equal for weight_policy. With 1.0 the GPUs count as '
             'much as each of them, and with 0 not at all. The metadata '
             'gpgpu_weight_multiplier of a host aggregate changes it for the '
             'hosts of the aggregate.'),
]

CONDUCTOR_GROUP = cfg.OptGroup(
    'gpgpu_conductor', title='gpgpu-conductor',
    help='Options that gpgpu-conductor reads.')

CONDUCTOR_OPTS = [
    cfg.StrOpt(
        'isolation_aggregate',
        help='Name of a host aggregate of Nova that gpgpu-conductor creates '
             'and in which it keeps the hosts with GPUs. The aggregate '
             'requires the trait CUSTOM_GPGPU_HOST, so that instances whose '
             'flavor lacks the trait go to other hosts, if nova-scheduler has '
             '[scheduler] enable_isolated_aggregate_filtering = true. While '
             'the option is set, "gpgpu-manage flavor set" adds the trait to '
             'flavors. By default there is no such aggregate.'),
    cfg.StrOpt(
        'isolation_cloud',
        help='Cloud in clouds.yaml with which gpgpu-conductor manages '
             'isolation_aggregate, as an administrator. By default the '
             'environment variables of OpenStack clients name it, such as '
             'OS_CLOUD.'),
    cfg.ListOpt(
        'exact_device_projects', default=[],
        help='IDs of the projects whose servers may name their GPUs in the '
             'scheduler hint gpgpu_device instead of requesting them by a '
             'flavor. Only gpgpu-conductor reads it. By default no project '
             'may, and a server with the hint is refused.'),
    cfg.StrOpt(
        'nova_notifications_topic', regex='^[A-Za-z0-9_.-]{1,255}$',
        help='Topic of Nova\'s versioned notifications from which '
             'gpgpu-conductor records the requests for GPUs for which '
             'Placement had no candidate. By default it reads none. Nova '
             'needs [notifications] notification_format = versioned or both, '
             'and an additional topic for the plugin: [notifications] '
             'versioned_notifications_topics = versioned_notifications,'
             'gpgpu_notifications. Each message of a topic is delivered to '
             'only one of its readers, so do not use a topic that others '
             'read.'),
    cfg.StrOpt(
        'nova_notifications_url', secret=True,
        help='URL of the message broker to which Nova sends its '
             'notifications. By default it is transport_url.'),
    cfg.StrOpt(
        'metrics_bind',
        help='IP address and TCP port on which gpgpu-conductor serves metrics '
             'for Prometheus over HTTP at the path /metrics, and whether it '
             'takes calls at /healthcheck, such as '
             '127.0.0.1:9464 or [::1]:9464. By default it serves none. '
             'Everybody who can connect may read the names of hosts and '
             'variants, and numbers of devices, calls and errors. There is '
             'neither TLS nor a password: bind to the loopback address and '
             'put a proxy in front of it, or bind to an address of the '
             'management network that only Prometheus can reach. Each '
             'gpgpu-conductor of a machine needs a port of its own.'),
    cfg.BoolOpt(
        'metrics_per_host', default=True,
        help='Whether the metrics of devices and capacity have the label '
             '"host", and a metric shows when each host last called. '
             'If not, gpgpu-conductor shows the sums over all hosts: a few '
             'series for each variant, whatever the number of hosts.'),
    cfg.StrOpt(
        'vendordata_bind',
        help='IP address and TCP port on which gpgpu-conductor answers '
             'requests of Nova for dynamic vendordata with the GPUs of a '
             'server, such as 127.0.0.1:9465 or [::1]:9465. By default it '
             'answers none. '
             'Name it in [api] vendordata_dynamic_targets of Nova\'s metadata '
             'service and nova-compute: gpgpu@http://127.0.0.1:9465/. There '
             'is no TLS: bind to an address of the management network, or put '
             'a proxy in front of it.'),
    cfg.StrOpt(
        'vendordata_password', secret=True,
        help='Password of the user "nova", with which Nova authenticates its '
             'requests for vendordata (HTTP Basic). vendordata_bind needs '
             'it. Set the same in Nova: [vendordata_dynamic_auth] auth_type '
             '= http_basic, username = nova, and password.'),
    cfg.IntOpt(
        'history_days', default=365, min=0, max=36500,
        help='Days after which gpgpu-conductor deletes events, and '
             'assignments and usage that ended. Events whose notifications '
             'were not sent, usage that was not exported, and the ledger of '
             'cleanings stay. 0: only "gpgpu-manage db purge" deletes them.'),
    cfg.StrOpt(
        'usage_audit_period', default='hour',
        choices=('hour', 'day', 'month', 'none'),
        help='Length of the audit periods, in UTC. After each period '
             'gpgpu-conductor sends a notification (gpgpu.assignment.exists) '
             'for each usage of a device in it. All conductors need the same '
             'value.'),
]

FAKE_GROUP = cfg.OptGroup(
    'gpgpu_fake', title='Fake GPUs',
    help='Options of gpgpu.GpuFakeDriver and gpgpu.GpuLibvirtFakeDriver.')

FAKE_OPTS = [
    cfg.StrOpt(
        'machine', default='hgx-h100-8',
        help='Machine that each host pretends to be: the name of one in '
             'gpgpu_plugin.host.fake.machines, or the path of a file that '
             '"gpgpu-host record" wrote.'),
    cfg.DictOpt(
        'machines', default={},
        help='Machines of individual hosts, by the name of the nova-compute '
             'service, as host1:MACHINE,host2:MACHINE. All other hosts use '
             'the machine that the option "machine" names.'),
]


GROUPS = [(GROUP, OPTS), (COMPUTE_GROUP, COMPUTE_OPTS),
           (FAKE_GROUP, FAKE_OPTS), (SCHEDULER_GROUP, SCHEDULER_OPTS),
           (CONDUCTOR_GROUP, CONDUCTOR_OPTS)]
"""All groups, with their options."""


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options. Registering them again changes nothing."""
    # By name: oslo.config copies a group that it is given but not the table
    # of options in it, so overrides in one configuration would be the next's.
    for group, options in GROUPS:
        conf.register_opts(options, group=group.name)


def check(conf: cfg.ConfigOpts) -> None:
    """Read all values, since oslo.config checks a value when it is read.

    :raises oslo_config.cfg.Error: a value is not valid; it names the option
    """
    for group, options in GROUPS:
        for option in options:
            getattr(conf[group.name], option.dest)


def claim_lease(conf: cfg.ConfigOpts) -> int:
    """Return for how many seconds a claim is presumed to be in a build."""
    return 2 * int(conf.gpgpu.digest_interval)


def silent_after(conf: cfg.ConfigOpts) -> int:
    """Return after how many seconds without a call a host is silent.

    An idle host calls after up to one and a half intervals, so one lost call
    makes no host silent. It looks once a minute whether a call is due, and a
    conductor stores once a minute that it called.
    """
    return max(3 * int(conf.gpgpu.digest_interval), 180)


def numvfs(conf: cfg.ConfigOpts) -> dict[str, int]:
    """Return ``sriov_numvfs`` by ``vendor:device`` in lower case."""
    return {ids.lower(): int(count) for ids, _, count in (
        entry.partition('=') for entry in conf.gpgpu_compute.sriov_numvfs)}


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options of all services, for oslo-config-generator."""
    return [(GROUP, OPTS)]


def list_compute_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options of nova-compute."""
    return [(COMPUTE_GROUP, COMPUTE_OPTS), (FAKE_GROUP, FAKE_OPTS)]


def list_scheduler_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options of nova-scheduler."""
    return [(SCHEDULER_GROUP, SCHEDULER_OPTS)]


def list_conductor_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options of gpgpu-conductor."""
    return [(CONDUCTOR_GROUP, CONDUCTOR_OPTS)]
