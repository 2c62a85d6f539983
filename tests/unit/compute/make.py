# SPDX-License-Identifier: Apache-2.0
"""Builders of values of the compute layer."""

from gpgpu_plugin.compute import inventory as offered_inventory
from gpgpu_plugin.compute import session as session_mod
from gpgpu_plugin.domain import host as host_rules
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import inventory
from gpgpu_plugin.objects import report
from tests.fixtures import tenant

NODE = 'node-1'
GROUP = 'provider-H100'


def session(api, book, offered=None):
    """Return an active session that has reported.

    :param api: mock of a conductor's API
    """
    api.begin_session.return_value = report.Session(
        number=1, generation=1, restored=False, cloud='c1')
    result = session_mod.HostSession(
        'h1', api, book, offered or offered_inventory.OfferedInventory(
            'h1', None, lambda: False, book.acknowledge), 's1')
    result.begin('n1', NODE, host_rules.MachineIdentity())
    result.accept_report()
    api.reset_mock()
    return result


def group(name='H100', total=8, reserved=0):
    return inventory.GroupInventory(
        variant=name, provider_name=f'h1_gpu_{name}',
        provider_uuid=f'provider-{name}',
        traits=('CUSTOM_GPU', 'OWNER_NOVA'),
        types=(inventory.TypeInventory(
            resource_class=f'CUSTOM_GPU_{name}', total=total,
            reserved=reserved, max_unit=total),))


def host_inventory(*groups, generation=1, host='h1'):
    return inventory.HostInventory(
        host=host, node_uuid=NODE, generation=generation, groups=groups)


def assignment(**kwargs):
    return claim.Assignment(**{
        **tenant.TENANT, 'host_generation': 1,
        'uuid': 'a1', 'instance_uuid': 'i1', 'host': 'h1',
        'role': claim.ClaimRole.INSTANCE, 'device_uuid': 'd1',
        'stable_id': '/devices/x', 'address': '0000:3b:00.0',
        'variant': 'H100', 'resource_class': 'CUSTOM_GPU_H100',
        'state': 'assigned', **kwargs})


def uuids(assignments):
    """Return the UUIDs of assignments."""
    return {assignment.uuid for assignment in assignments}
