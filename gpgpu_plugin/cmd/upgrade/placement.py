# SPDX-License-Identifier: Apache-2.0
"""Check that Placement answers with the credentials of Nova.

Only nova-compute talks to Placement, by Nova's report client. Its credentials
are in ``[placement]`` of nova.conf. Without these, the cloud of clouds.yaml is
used, as by ``gpgpu-manage flavor set``.
"""

from __future__ import annotations

from collections.abc import Callable

import openstack
from keystoneauth1 import adapter
from keystoneauth1 import exceptions as keystone_exceptions
from keystoneauth1 import loading
from openstack import exceptions as sdk_exceptions
from oslo_config import cfg

from gpgpu_plugin.cmd.upgrade import result

_GROUP = 'placement'


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register ``[placement]`` as Nova does."""
    loading.register_auth_conf_options(conf, _GROUP)
    loading.register_session_conf_options(conf, _GROUP)
    loading.register_adapter_conf_options(conf, _GROUP)


def reachable(nova_conf: cfg.ConfigOpts | None,
              cloud: str | None) -> result.Result:
    """Check that Placement answers.

    :param nova_conf: that of Nova, with the options of ``register_opts``
    :param cloud: name in clouds.yaml, used without credentials in nova.conf
    """
    source, connect = _source(nova_conf, cloud)
    if connect is None:
        return result.warning(
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
        return result.failure(
            f'Placement cannot be reached with {source}: {exc}. Correct it, '
            f'or start Placement')
    if response.status_code != 200:
        return result.failure(
            f'Placement refused a request with {source} (HTTP '
            f'{response.status_code}): give its user the rights of Nova\'s')
    return result.success(f'Placement answers with {source}')


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
