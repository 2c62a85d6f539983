# SPDX-License-Identifier: Apache-2.0
"""Checks of gpgpu-status: nova.conf, conductors and Placement."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from importlib import metadata

import openstack
import os_resource_classes
import oslo_messaging
from keystoneauth1 import adapter
from keystoneauth1 import exceptions as keystone_exceptions
from keystoneauth1 import loading
from openstack import exceptions as sdk_exceptions
from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

from gpgpu_plugin import version
from gpgpu_plugin.cmd import configuration
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.domain import variant as rules
from gpgpu_plugin.rpc import ping

# -- Results of checks, and how they are joined.


Result = upgradecheck.Result

_MAX_NAMED = 8
"""Number of names in a text; a cloud may have 10,000 hosts."""


def success(text: str) -> Result:
    """Return that nothing is to be done, and what was found."""
    return Result(upgradecheck.Code.SUCCESS, text)


def warning(text: str) -> Result:
    """Return that something works, but needs a look."""
    return Result(upgradecheck.Code.WARNING, text)


def failure(text: str) -> Result:
    """Return that something does not work until the operator acts."""
    return Result(upgradecheck.Code.FAILURE, text)


def join(results: Iterable[Result], fine: str) -> Result:
    """Return the findings of one check as one result.

    :param results: findings; none, if all is well
    :param fine: text if all is well
    """
    found = sorted(results, key=lambda result: -result.code)
    if not found:
        return success(fine)
    return Result(found[0].code, '. '.join(
        str(result.details) for result in found))


def names(found: Sequence[str]) -> str:
    """Return the first names of a list, and the number of the others."""
    more = len(found) - _MAX_NAMED
    return ', '.join(found[:_MAX_NAMED]) + (f' and {more} more' * (more > 0))


# -- Check of the conductors that are alive.


def conductors_alive(answers: Sequence[ping.PingAnswer]) -> Result:
    """Check that conductors answer, and that all have this version."""
    if not answers:
        return warning(
            'no gpgpu-conductor answered, so that instances with GPUs find '
            'no host. Start one, unless all are stopped for an upgrade; if '
            'one runs, look for "gpgpu-conductor refused ping" in its log')
    others = [f'{answer.host} (PID {answer.pid}) has {answer.version}'
              for answer in answers if answer.version != version.VERSION]
    if others:
        return warning(
            f'this is gpgpu_plugin {version.VERSION}, and '
            f'{names(others)}: restart each gpgpu-conductor where the '
            f'package was upgraded, and upgrade the others')
    return success(
        f'{len(answers)} answered, all of version {version.VERSION}')


# -- Check that Placement answers with the credentials of Nova.
#
# Only nova-compute talks to Placement, by Nova's report client. Its
# credentials are in ``[placement]`` of nova.conf. Without these, the cloud of
# clouds.yaml is used, as by ``gpgpu-manage flavor set``.


_GROUP = 'placement'


def register_placement_opts(conf: cfg.ConfigOpts) -> None:
    """Register ``[placement]`` as Nova does."""
    loading.register_auth_conf_options(conf, _GROUP)
    loading.register_session_conf_options(conf, _GROUP)
    loading.register_adapter_conf_options(conf, _GROUP)


def placement_reachable(nova_conf: cfg.ConfigOpts | None,
                        cloud: str | None) -> Result:
    """Check that Placement answers.

    :param nova_conf: that of Nova, with the options of
        ``register_placement_opts``
    :param cloud: name in clouds.yaml, used without credentials in nova.conf
    """
    source, connect = _source(nova_conf, cloud)
    if connect is None:
        return warning(
            'not checked, since nova.conf has no credentials in [placement], '
            'and no cloud is given: name nova.conf of nova-compute or '
            'nova-scheduler with --nova-config-file, or a cloud in '
            'clouds.yaml with --os-cloud')
    try:
        # Unlike the list of versions, it needs a valid token.
        response = connect().get(
            '/resource_classes', headers={
                'OpenStack-API-Version': 'placement 1.2'}, raise_exc=False)
    except (sdk_exceptions.SDKException,
            keystone_exceptions.ClientException) as exc:
        return failure(
            f'Placement cannot be reached with {source}: {exc}. Correct it, '
            f'or start Placement')
    if response.status_code != 200:
        return failure(
            f'Placement refused a request with {source} (HTTP '
            f'{response.status_code}): give its user the rights of Nova\'s')
    return success(f'Placement answers with {source}')


def _source(nova_conf: cfg.ConfigOpts | None, cloud: str | None,
            ) -> tuple[str, Callable[[], adapter.Adapter] | None]:
    """Return words for the credentials, and what connects with them."""
    if nova_conf is not None and nova_conf.placement.auth_type:
        return '[placement] of nova.conf', lambda: _of_nova(nova_conf)
    if cloud:
        return (f'cloud {cloud} of clouds.yaml',
                lambda: openstack.connect(cloud=cloud).placement)
    return '', None


def _of_nova(conf: cfg.ConfigOpts) -> adapter.Adapter:
    auth = loading.load_auth_from_conf_options(conf, _GROUP)
    session = loading.load_session_from_conf_options(conf, _GROUP, auth=auth)
    return loading.load_adapter_from_conf_options(
        conf, _GROUP, session=session, auth=auth)


# -- Checks of a nova.conf, which is read without Nova.
#
# gpgpu-conductor need not run where Nova is installed. A test compares the
# options below with those of Nova.


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
    register_placement_opts(conf)
    conf([], project='nova', default_config_files=list(files),
         default_config_dirs=[f'{path}.d' for path in files
                              if os.path.isdir(f'{path}.d')])
    return conf


def filters(conf: cfg.ConfigOpts) -> Result:
    """Check the filters of nova-scheduler."""
    if _is_default(conf, 'enabled_filters', 'filter_scheduler'):
        text = ('[filter_scheduler] enabled_filters is not set, so that '
                'GpuFilter is not enabled: if nova-scheduler reads this '
                'file, add GpuNUMATopologyFilter and GpuFilter to the '
                'filters of Nova')
        # The file of a compute host has no filters.
        return (warning(text) if conf.compute_driver
                else failure(text))
    return join(
        [*_unavailable(conf), *_disabled(conf)],
        'GpuFilter and GpuNUMATopologyFilter are enabled')


def _unavailable(conf: cfg.ConfigOpts) -> Iterator[Result]:
    """Yield which filters nova-scheduler does not find; it does not start."""
    available = conf.filter_scheduler.available_filters
    enabled = conf.filter_scheduler.enabled_filters
    if (any(name.startswith('Gpu') for name in enabled)
            and not any(name.startswith('gpgpu_plugin.')
                        for name in available)):
        yield failure(
            f'[filter_scheduler] available_filters lacks {OUR_FILTERS}, so '
            f'that nova-scheduler does not start: add it beside '
            f'{NOVA_FILTERS}')
    if not any(name.startswith('nova.') for name in available):
        yield failure(
            f'[filter_scheduler] available_filters lacks {NOVA_FILTERS}. '
            f'The option replaces this default, so that nova-scheduler does '
            f'not find the filters of Nova: add it')


def _disabled(conf: cfg.ConfigOpts) -> Iterator[Result]:
    """Yield which filters are missing."""
    enabled = conf.filter_scheduler.enabled_filters
    if 'GpuFilter' not in enabled:
        yield failure(
            'GpuFilter is not in [filter_scheduler] enabled_filters, so that '
            'instances with GPUs are sent to hosts that refuse them: add it')
    if 'GpuNUMATopologyFilter' not in enabled:
        yield warning(
            'GpuNUMATopologyFilter is not in [filter_scheduler] '
            'enabled_filters, so that instances which must be near to their '
            'GPUs may be sent to hosts that refuse them: put it in the place '
            'of NUMATopologyFilter')
    [option] = [option for option in OPTS['filter_scheduler']
                if option.dest == 'enabled_filters']
    missing = [name for name in option.default if name not in enabled]
    if missing:
        yield warning(
            f'[filter_scheduler] enabled_filters lacks filters that Nova '
            f'enables by default: {", ".join(missing)}. Add them, unless you '
            f'left them out on purpose')


def compute_driver(conf: cfg.ConfigOpts) -> Result:
    """Check the driver of nova-compute."""
    name = conf.compute_driver
    if not name:
        return success(
            'this file names no compute_driver: it is not that of a compute '
            'host')
    if not is_ours(conf):
        return warning(
            f'compute_driver = {name}: nova-compute offers no GPUs. If this '
            f'is a host with GPUs, set it to gpgpu.GpuLibvirtDriver')
    known = sorted(entry_point.attr for entry_point
                   in metadata.entry_points(group=_DRIVERS))
    if name.partition('.')[2] not in known:
        return failure(
            f'compute_driver = {name} does not exist, so that nova-compute '
            f'does not start: set it to gpgpu.GpuLibvirtDriver (known: '
            f'{", ".join(known)})')
    if 'Fake' in name:
        return warning(
            f'compute_driver = {name}: no guest gets a real GPU. Set it to '
            f'gpgpu.GpuLibvirtDriver on a host with GPUs')
    return success(f'compute_driver = {name}')


def is_ours(conf: cfg.ConfigOpts) -> bool:
    """Return whether nova-compute uses a driver of the plugin."""
    return str(conf.compute_driver or '').startswith('gpgpu.')


def same_options(nova_conf: cfg.ConfigOpts,
                 conf: cfg.ConfigOpts) -> Result:
    """Check that Nova and gpgpu-conductor have the same ``[gpgpu]``.

    :param conf: that of gpgpu-conductor
    """
    return join(
        [*_unreachable(nova_conf, conf), *_differing(nova_conf, conf)],
        '[gpgpu] of nova.conf agrees with that of gpgpu-conductor')


def _unreachable(nova_conf: cfg.ConfigOpts,
                 conf: cfg.ConfigOpts) -> Iterator[Result]:
    """Yield why calls of Nova do not reach gpgpu-conductor."""
    theirs, ours = _topics(nova_conf), _topics(conf)
    if theirs != ours:
        yield failure(
            f'calls of Nova do not reach gpgpu-conductor: the virtual host '
            f'of the broker and [gpgpu] topic_prefix are {theirs} in '
            f'nova.conf, and {ours} for gpgpu-conductor. Set [gpgpu] '
            f'transport_url and topic_prefix to the same')
    if (nova_conf.gpgpu.sign_calls is False
            and conf.gpgpu.sign_calls is not False):
        yield failure(
            'gpgpu-conductor refuses the calls of Nova, which are not '
            'signed: remove [gpgpu] sign_calls = false from nova.conf')
    if (conf.gpgpu.sign_calls is False
            and nova_conf.gpgpu.sign_calls is not False):
        yield failure(
            'Nova refuses the answers of gpgpu-conductor, which are not '
            'signed: remove [gpgpu] sign_calls = false from gpgpu.conf')


def _topics(conf: cfg.ConfigOpts) -> str:
    url = oslo_messaging.TransportURL.parse(conf, conf.gpgpu.transport_url)
    return f'"{url.virtual_host or "/"}", "{conf.gpgpu.topic_prefix}"'


def _differing(nova_conf: cfg.ConfigOpts,
               conf: cfg.ConfigOpts) -> Iterator[Result]:
    """Yield which other options differ."""
    for name in ('rpc_timeout', 'digest_interval'):
        theirs, ours = nova_conf.gpgpu[name], conf.gpgpu[name]
        if theirs != ours:
            yield warning(
                f'[gpgpu] {name} is {theirs} in nova.conf, and {ours} for '
                f'gpgpu-conductor: set it to the same')


def notifications(nova_conf: cfg.ConfigOpts,
                  conf: cfg.ConfigOpts) -> Result:
    """Check that requests without a candidate in Placement are recorded.

    :param conf: that of gpgpu-conductor
    """
    topic = conf.gpgpu_conductor.nova_notifications_topic
    ours = nova_conf.notifications
    if topic is None:
        return warning(
            'requests for GPUs for which Placement has no candidate, the '
            'usual shortage, leave neither event nor alert: set '
            '[gpgpu_conductor] nova_notifications_topic')
    is_sent = (ours.notification_format in ('versioned', 'both')
               and topic in ours.versioned_notifications_topics
               and nova_conf.oslo_messaging_notifications.driver)
    if is_sent:
        return success(f'topic {topic}')
    if nova_conf.compute_driver and _is_default(
            nova_conf, 'notification_format', 'notifications'):
        return success(
            f'topic {topic}; whether Nova sends to it is to be checked with '
            f'the nova.conf of nova-conductor')
    return warning(
        f'Nova sends no notifications to topic {topic}: in the nova.conf of '
        f'nova-conductor, set [notifications] notification_format = '
        f'versioned, versioned_notifications_topics = {topic}, and '
        f'[oslo_messaging_notifications] driver = messagingv2')


def _is_default(conf: cfg.ConfigOpts, name: str, group: str) -> bool:
    found = conf.get_location(name, group)
    return found is None or found.location is cfg.Locations.opt_default


# -- Check that Nova does not assign devices that the plugin offers.
#
# nova-compute itself refuses to start if both would assign a device of its
# host (virt.nova_devices). This check knows the variants, but no device.


_ANY = '*'

_Spec = Mapping[str, object]


def device_collisions(conf: cfg.ConfigOpts,
                      variants: Sequence[rules.Variant]) -> Result:
    """Check Nova's own options for devices.

    :param conf: that of Nova
    """
    return join(
        [*(_of_host(conf, variants) if is_ours(conf) else ()),
         *_aliases(conf, variants)],
        'Nova assigns no device that the plugin offers')


def _of_host(conf: cfg.ConfigOpts, variants: Sequence[rules.Variant],
             ) -> Iterator[Result]:
    yield from _device_specs(conf, variants)
    yield from _mdev_types(conf, variants)
    if conf.update_resources_interval < 0:
        yield warning(
            'update_resources_interval is negative, so that nova-compute '
            'does not notice devices of instances that are gone until its '
            'daily comparison: remove the option')


def _device_specs(conf: cfg.ConfigOpts, variants: Sequence[rules.Variant],
                  ) -> Iterator[Result]:
    for spec in _objects(conf.pci.device_spec):
        if spec is None:
            yield failure(
                '[pci] device_spec is not JSON, so that nova-compute does '
                'not start: correct it')
            continue
        # Nova gives devices of a network to ports, and no GPU has one.
        if 'physical_network' in spec:
            continue
        found = [variant.name for variant in variants
                 if _covers(spec, variant)]
        if found and _ANY not in _ids(spec):
            yield failure(
                f'[pci] device_spec covers variant {names(found)}, so '
                f'that nova-compute does not start where it finds such '
                f'devices: remove {json.dumps(spec)} from the option, or '
                f'delete the variant')
        elif found:
            yield warning(
                f'[pci] device_spec {json.dumps(spec)} does not name the '
                f'product, and may cover variant {names(found)}. '
                f'nova-compute does not start if it does: name vendor_id and '
                f'product_id')


def _covers(spec: _Spec, variant: rules.Variant) -> bool:
    vendor, product = _ids(spec)
    return (vendor in (_ANY, variant.vendor)
            and product in (_ANY, variant.device))


def _ids(spec: _Spec) -> tuple[str, str]:
    return (str(spec.get('vendor_id', _ANY)).lower(),
            str(spec.get('product_id', _ANY)).lower())


def _objects(values: Sequence[str]) -> Iterator[_Spec | None]:
    """Yield the objects in values that Nova reads as JSON; None for others."""
    for value in values:
        try:
            parsed = json.loads(value)
        except ValueError:
            yield None
            continue
        for item in parsed if isinstance(parsed, list) else [parsed]:
            yield item if isinstance(item, dict) else None


def _mdev_types(conf: cfg.ConfigOpts, variants: Sequence[rules.Variant],
                ) -> Iterator[Result]:
    types = conf.devices.enabled_mdev_types
    if not types:
        return
    of_vgpu = [variant.name for variant in variants
               if variant.resource_class == os_resource_classes.VGPU]
    if of_vgpu:
        yield failure(
            f'[devices] enabled_mdev_types makes Nova offer the resource '
            f'class VGPU, which variant {names(of_vgpu)} has as '
            f'well: remove the option, or give the variant another class')
    else:
        yield warning(
            f'[devices] enabled_mdev_types = {",".join(types)}: nova-compute '
            f'does not start if it finds a GPU of a variant with such a '
            f'type. Remove the option, unless these GPUs have no variant')


def _aliases(conf: cfg.ConfigOpts, variants: Sequence[rules.Variant],
             ) -> Iterator[Result]:
    """Yield aliases, by which flavors request devices of ``device_spec``."""
    for alias in _objects(conf.pci.alias):
        if alias is None:
            yield failure('[pci] alias is not JSON: correct it')
            continue
        found = [variant.name for variant in variants
                 if _ANY not in _ids(alias) and _covers(alias, variant)]
        if found:
            yield warning(
                f'[pci] alias {alias.get("name")} is for variant '
                f'{names(found)}: when no instance is left that got '
                f'its GPUs by it, remove it here and from flavors')
