# SPDX-License-Identifier: Apache-2.0
"""Hosts as values, as tests of why-not write them."""

from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import host_state
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.domain.why_not import host as host_mod
from tests.fixtures import group as make

State = device_rules.DeviceState
HELD = 'held'
"""State of a GPU that is dirty and that an operator quarantined."""
WHOLE = 'CUSTOM_GPU_T4'


def t4s(*states, name='h1', users=None, state=host_state.HostState.UP,
        fields=None, **group):
    """Return a host with a T4 in each state, two on each NUMA node.

    :param states: each a State or HELD
    :param users: instance by the number of its GPU; others of assigned ones
        have an instance of their own
    :param fields: other facts of devices by number
    """
    gpus = [make.gpu(number, function={'numa_node': number // 2}, **{
        **({'state': State.DIRTY, 'holds': frozenset({'quarantined'})}
           if of_gpu == HELD else {'state': of_gpu}),
        **(fields or {}).get(number, {})})
        for number, of_gpu in enumerate(states)]
    return host_mod.Host(
        name=name, state=state, groups=(make.t4s(*gpus, **group),),
        users={gpu.id: (users or {}).get(number, f'i{number}')
               for number, gpu in enumerate(gpus)
               if gpu.state in device_rules.ASSIGNED_STATES})


def request(count, resource_class=WHOLE, **fields):
    """Return a request for T4s."""
    return request_mod.Request(demands=(request_mod.Demand(
        resource_class=resource_class, count=count),), **fields)
