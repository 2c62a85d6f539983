# SPDX-License-Identifier: Apache-2.0
"""Checks of a nova.conf, which is read without Nova.

gpgpu-conductor need not run where Nova is installed. A test compares the
options below with those of Nova.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from collections.abc import Sequence
from importlib import metadata

import oslo_messaging
from oslo_config import cfg

from gpgpu_plugin.cmd import configuration
from gpgpu_plugin.cmd.upgrade import placement
from gpgpu_plugin.cmd.upgrade import result
from gpgpu_plugin.conf import gpgpu as conf_gpgpu

OPTS: dict[str, list[cfg.Opt]] = {
    'DEFAULT': [
        cfg.StrOpt('compute_driver'),
        cfg.IntOpt('update_resources_interval', default=0)],
    'devices': [
        cfg.ListOpt('enabled_mdev_types', default=[],
                    deprecated_name='enabled_vgpu_types')],
    'filter_scheduler': [
        cfg.MultiStrOpt('available_filters', default=[
            'nova.scheduler.filters.all_filters']),
        cfg.ListOpt('enabled_filters', default=[
            'ComputeFilter', 'ComputeCapabilitiesFilter',
            'ImagePropertiesFilter', 'ServerGroupAntiAffinityFilter',
            'ServerGroupAffinityFilter'])],
    'notifications': [
        cfg.StrOpt('notification_format', default='unversioned',
                   deprecated_group='DEFAULT'),
        cfg.ListOpt('versioned_notifications_topics',
                    default=['versioned_notifications'])],
    'oslo_messaging_notifications': [
        cfg.MultiStrOpt('driver', default=[])],
    'pci': [
        cfg.MultiStrOpt('alias', default=[], deprecated_name='pci_alias',
                        deprecated_group='DEFAULT'),
        cfg.MultiStrOpt('device_spec', default=[], deprecated_opts=[
            cfg.DeprecatedOpt('passthrough_whitelist', group='pci'),
            cfg.DeprecatedOpt('pci_passthrough_whitelist',
                              group='DEFAULT')])],
}
"""Options of Nova that are read, by group."""

NOVA_FILTERS = 'nova.scheduler.filters.all_filters'
OUR_FILTERS = 'gpgpu_plugin.scheduler_filters.all_filters'

_DRIVERS = 'gpgpu_plugin.virt_drivers'


def read(files: Sequence[str]) -> cfg.ConfigOpts:
    """Return the options of a service of Nova.

    Like Nova, it also reads the files in nova.conf.d beside nova.conf.

    :raises HostError: a file cannot be read
    :raises oslo_config.cfg.Error: a file is malformed
    """
    for path in files:
        configuration.check_readable(path, '--nova-config-file')
    conf = cfg.ConfigOpts()
    for group, options in OPTS.items():
        conf.register_opts(
            options, group=None if group == 'DEFAULT' else group)
    conf_gpgpu.register_opts(conf)
    placement.register_opts(conf)
    conf([], project='nova', default_config_files=list(files),
         default_config_dirs=[f'{path}.d' for path in files
                              if os.path.isdir(f'{path}.d')])
    return conf


def filters(conf: cfg.ConfigOpts) -> result.Result:
    """Check the filters of nova-scheduler."""
    if _is_default(conf, 'enabled_filters', 'filter_scheduler'):
        text = ('[filter_scheduler] enabled_filters is not set, so that '
                'GpuFilter is not enabled: if nova-scheduler reads this '
                'file, add GpuNUMATopologyFilter and GpuFilter to the '
                'filters of Nova')
        # The file of a compute host has no filters.
        return (result.warning(text) if conf.compute_driver
                else result.failure(text))
    return result.join(
        [*_unavailable(conf), *_disabled(conf)],
        'GpuFilter and GpuNUMATopologyFilter are enabled')


def _unavailable(conf: cfg.ConfigOpts) -> Iterator[result.Result]:
    """Yield which filters nova-scheduler does not find; it does not start."""
    available = conf.filter_scheduler.available_filters
    enabled = conf.filter_scheduler.enabled_filters
    if (any(name.startswith('Gpu') for name in enabled)
            and not any(name.startswith('gpgpu_plugin.')
                        for name in available)):
        yield result.failure(
            f'[filter_scheduler] available_filters lacks {OUR_FILTERS}, so '
            f'that nova-scheduler does not start: add it beside '
            f'{NOVA_FILTERS}')
    if not any(name.startswith('nova.') for name in available):
        yield result.failure(
            f'[filter_scheduler] available_filters lacks {NOVA_FILTERS}. '
            f'The option replaces this default, so that nova-scheduler does '
            f'not find the filters of Nova: add it')


def _disabled(conf: cfg.ConfigOpts) -> Iterator[result.Result]:
    """Yield which filters are missing."""
    enabled = conf.filter_scheduler.enabled_filters
    if 'GpuFilter' not in enabled:
        yield result.failure(
            'GpuFilter is not in [filter_scheduler] enabled_filters, so that '
            'instances with GPUs are sent to hosts that refuse them: add it')
    if 'GpuNUMATopologyFilter' not in enabled:
        yield result.warning(
            'GpuNUMATopologyFilter is not in [filter_scheduler] '
            'enabled_filters, so that instances which must be near to their '
            'GPUs may be sent to hosts that refuse them: put it in the place '
            'of NUMATopologyFilter')
    [option] = [option for option in OPTS['filter_scheduler']
                if option.dest == 'enabled_filters']
    missing = [name for name in option.default if name not in enabled]
    if missing:
        yield result.warning(
            f'[filter_scheduler] enabled_filters lacks filters that Nova '
            f'enables by default: {", ".join(missing)}. Add them, unless you '
            f'left them out on purpose')


def compute_driver(conf: cfg.ConfigOpts) -> result.Result:
    """Check the driver of nova-compute."""
    name = conf.compute_driver
    if not name:
        return result.success(
            'this file names no compute_driver: it is not that of a compute '
            'host')
    if not is_ours(conf):
        return result.warning(
            f'compute_driver = {name}: nova-compute offers no GPUs. If this '
            f'is a host with GPUs, set it to gpgpu.GpuLibvirtDriver')
    known = sorted(entry_point.attr for entry_point
                   in metadata.entry_points(group=_DRIVERS))
    if name.partition('.')[2] not in known:
        return result.failure(
            f'compute_driver = {name} does not exist, so that nova-compute '
            f'does not start: set it to gpgpu.GpuLibvirtDriver (known: '
            f'{", ".join(known)})')
    if 'Fake' in name:
        return result.warning(
            f'compute_driver = {name}: no guest gets a real GPU. Set it to '
            f'gpgpu.GpuLibvirtDriver on a host with GPUs')
    return result.success(f'compute_driver = {name}')


def is_ours(conf: cfg.ConfigOpts) -> bool:
    """Return whether nova-compute uses a driver of the plugin."""
    return str(conf.compute_driver or '').startswith('gpgpu.')


def same_options(nova_conf: cfg.ConfigOpts,
                 conf: cfg.ConfigOpts) -> result.Result:
    """Check that Nova and gpgpu-conductor have the same ``[gpgpu]``.

    :param conf: that of gpgpu-conductor
    """
    return result.join(
        [*_unreachable(nova_conf, conf), *_differing(nova_conf, conf)],
        '[gpgpu] of nova.conf agrees with that of gpgpu-conductor')


def _unreachable(nova_conf: cfg.ConfigOpts,
                 conf: cfg.ConfigOpts) -> Iterator[result.Result]:
    """Yield why calls of Nova do not reach gpgpu-conductor."""
    theirs, ours = _topics(nova_conf), _topics(conf)
    if theirs != ours:
        yield result.failure(
            f'calls of Nova do not reach gpgpu-conductor: the virtual host '
            f'of the broker and [gpgpu] topic_prefix are {theirs} in '
            f'nova.conf, and {ours} for gpgpu-conductor. Set [gpgpu] '
            f'transport_url and topic_prefix to the same')
    if (nova_conf.gpgpu.sign_calls is False
            and conf.gpgpu.sign_calls is not False):
        yield result.failure(
            'gpgpu-conductor refuses the calls of Nova, which are not '
            'signed: remove [gpgpu] sign_calls = false from nova.conf')


def _topics(conf: cfg.ConfigOpts) -> str:
    url = oslo_messaging.TransportURL.parse(conf, conf.gpgpu.transport_url)
    return f'"{url.virtual_host or "/"}", "{conf.gpgpu.topic_prefix}"'


def _differing(nova_conf: cfg.ConfigOpts,
               conf: cfg.ConfigOpts) -> Iterator[result.Result]:
    """Yield which other options differ."""
    theirs, ours = nova_conf.gpgpu.rpc_timeout, conf.gpgpu.rpc_timeout
    if theirs != ours:
        yield result.warning(
            f'[gpgpu] rpc_timeout is {theirs} in nova.conf, and {ours} for '
            f'gpgpu-conductor: set it to the same')


def notifications(nova_conf: cfg.ConfigOpts,
                  conf: cfg.ConfigOpts) -> result.Result:
    """Check that requests without a candidate in Placement are recorded.

    :param conf: that of gpgpu-conductor
    """
    topic = conf.gpgpu_conductor.nova_notifications_topic
    ours = nova_conf.notifications
    if topic is None:
        return result.warning(
            'requests for GPUs for which Placement has no candidate, the '
            'usual shortage, leave neither event nor alert: set '
            '[gpgpu_conductor] nova_notifications_topic')
    is_sent = (ours.notification_format in ('versioned', 'both')
               and topic in ours.versioned_notifications_topics
               and nova_conf.oslo_messaging_notifications.driver)
    if is_sent:
        return result.success(f'topic {topic}')
    if nova_conf.compute_driver and _is_default(
            nova_conf, 'notification_format', 'notifications'):
        return result.success(
            f'topic {topic}; whether Nova sends to it is to be checked with '
            f'the nova.conf of nova-conductor')
    return result.warning(
        f'Nova sends no notifications to topic {topic}: in the nova.conf of '
        f'nova-conductor, set [notifications] notification_format = '
        f'versioned, versioned_notifications_topics = {topic}, and '
        f'[oslo_messaging_notifications] driver = messagingv2')


def _is_default(conf: cfg.ConfigOpts, name: str, group: str) -> bool:
    found = conf.get_location(name, group)
    return found is None or found.location is cfg.Locations.opt_default
