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
"""What operators see and set: hosts, groups and devices."""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import capacity
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.db import api
from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import models
from gpgpu_plugin.domain import device as device_rules
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request as request_mod
from gpgpu_plugin.objects import admin as objects

LOG = logging.getLogger(__name__)

_FACTS = ('vendor', 'device', 'subsystem_vendor', 'subsystem', 'revision',
          'class_code', 'driver', 'numa_node', 'iommu_group', 'slot',
          'serial', 'dsn')


def host_list(db: api.Database,
              name: str | None = None) -> tuple[objects.HostInfo, ...]:
    """All hosts, or the named one. :raises NotFound: it never reported"""
    with db.reader() as session:
        hosts = session.scalars(
            sa.select(models.Host).where(models.Host.deleted == 0)
            .order_by(models.Host.name)).all()
        if name is not None:
            hosts = [host_db.get(session, name)]
        states: dict[int, collections.Counter[str]] = (
            collections.defaultdict(collections.Counter))
        devices = device_db.of_hosts(session, [host.id for host in hosts])
        children = _children(devices)
        for device in devices:
            if device.kind == 'pci':
                states[device.host_id][capacity.shown_state(
                    device, children.get(device.id, ()))] += 1
        return tuple(_host_view(host, states[host.id]) for host in hosts)


def _host_view(host: models.Host,
               states: Mapping[str, int]) -> objects.HostInfo:
    return objects.HostInfo(
        host=host.name, node=host.node, node_uuid=host.node_uuid,
        generation=host.generation, devices=dict(sorted(states.items())),
        reported_at=(host.reported_at.isoformat(timespec='seconds') + 'Z'
                     if host.reported_at else None),
        problems=tuple(json.loads(host.problems)))


def check_not_running(db: api.Database, name: str,
                      answers: Callable[[], bool]) -> None:
    """Refuse a host whose nova-compute runs, or may be running.

    :param answers: asks nova-compute; raises where that is not known
    :raises NotFound: the host never reported
    :raises Conflict: nova-compute answered, or it could not be asked
    """
    with db.reader() as session:
        host_db.get(session, name)
    try:
        running = answers()
    except Exception as exc:
        # Whatever it is, it is no proof that nova-compute ended.
        LOG.exception('nova-compute of %s could not be asked whether it '
                      'runs', name)
        raise exception.Conflict(
            kind='host', name=name,
            reason=f'nova-compute could not be asked whether it is running '
                   f'({type(exc).__name__}: {str(exc).partition(chr(10))[0]})'
                   f'; try again, or give --force to delete the host all '
                   f'the same') from exc
    if running:
        raise exception.Conflict(
            kind='host', name=name,
            reason='its nova-compute is running; stop nova-compute there and '
                   'delete the host again, or give --force to delete it now '
                   'and have it report its devices anew')


def host_delete(db: api.Database, name: str) -> None:
    """Forget a host (ConductorAPI.host_delete)."""
    def work(session: orm.Session) -> None:
        host = host_db.lock(session, name)
        if host is None:
            raise exception.NotFound(kind='host', name=name)
        held = assignment_db.active(
            session, models.Assignment.host_id == host.id)
        if held:
            raise exception.Conflict(
                kind='host', name=name,
                reason=f'instance {held[0].instance_uuid} holds a device '
                       f'of it')
        _delete_rows(session, host)
        event_db.add(session, 'host_delete', host.name)
        # A tombstone: schedulers learn of the deletion as of any change.
        host.deleted = host.id
        host_db.changed(host)
    db.write(work)


def _delete_rows(session: orm.Session, host: models.Host) -> None:
    session.execute(sa.delete(models.Assignment).where(
        models.Assignment.host_id == host.id))
    session.execute(sa.update(models.Device).where(
        models.Device.host_id == host.id).values(parent_id=None))
    session.execute(sa.delete(models.Device).where(
        models.Device.host_id == host.id))
    session.expire_all()
    for group in session.scalars(sa.select(models.Group).where(
            models.Group.host_id == host.id)).all():
        session.delete(group)


def group_list(db: api.Database, host: str | None = None,
               variant: str | None = None,
               ) -> tuple[objects.GroupInfo, ...]:
    """Groups with their capacity."""
    with db.reader() as session:
        hosts = {row.id: row for row in session.scalars(
            sa.select(models.Host).where(models.Host.deleted == 0)
            .order_by(models.Host.name))
            if host in (None, row.name)}
        states = capacity.load(session, list(hosts))
        return tuple(
            _group_detail(hosts[host_id], state)
            for host_id in hosts for state in states.get(host_id, [])
            if variant in (None, state.group.variant.name))


def _group_detail(host: models.Host,
                  state: capacity.GroupCapacity) -> objects.GroupInfo:
    whole = next(kind for kind in state.group.types
                 if kind.vgpu_type == naming.PASSTHROUGH)
    desired = state.desired(whole)
    return objects.GroupInfo(
        host=host.name, variant=state.group.variant.name,
        resource_class=state.group.variant.resource_class,
        provider_uuid=state.group.provider_uuid,
        allocation_policy=state.group.allocation_policy,
        total=desired.total if desired else 0,
        reserved=desired.reserved if desired else 0,
        remaining=state.available(whole), assigned=state.held_of(whole),
        states=state.states())


def group_set(db: api.Database, host_name: str, variant: str,
              allocation_policy: str) -> objects.GroupInfo:
    """Set a group's allocation policy (ConductorAPI.group_set)."""
    if allocation_policy not in list(request_mod.AllocationPolicy):
        raise exception.Invalid(
            field='allocation policy', value=allocation_policy,
            expected='one of ' + ', '.join(request_mod.AllocationPolicy))

    def work(session: orm.Session) -> objects.GroupInfo:
        host = host_db.lock(session, host_name)
        if host is None:
            raise exception.NotFound(kind='host', name=host_name)
        for state in capacity.load(session, [host.id])[host.id]:
            if state.group.variant.name == variant:
                state.group.allocation_policy = allocation_policy
                return _group_detail(host, state)
        raise exception.NotFound(
            kind='group', name=f'{variant} on {host_name}')
    return db.write(work)


def device_list(db: api.Database, host: str | None = None,
                variant: str | None = None, state: str | None = None,
                used_by: str | None = None,
                ) -> tuple[objects.DeviceInfo, ...]:
    """Devices (ConductorAPI.device_list)."""
    if state is not None and state not in device_rules.SHOWN_STATES:
        raise exception.Invalid(
            field='state', value=state,
            expected='one of ' + ', '.join(device_rules.SHOWN_STATES))
    with db.reader() as session:
        query = (
            sa.select(models.Device, models.Host,
                      models.Assignment.instance_uuid)
            .join(models.Host, models.Device.host_id == models.Host.id)
            .outerjoin(models.Assignment, sa.and_(
                models.Assignment.device_id == models.Device.id,
                models.Assignment.active == 1))
            .options(orm.selectinload(models.Device.group))
            .order_by(models.Host.name, models.Device.stable_id))
        if host is not None:
            host_db.get(session, host)
            query = query.where(models.Host.name == host)
        if used_by is not None:
            query = query.where(models.Assignment.instance_uuid == used_by)
        found = session.execute(query).all()
        children = _children(
            found_one for found_one, _, _ in found) if used_by is None else (
            _children(session.scalars(sa.select(models.Device).where(
                models.Device.parent_id.in_([
                    each.id for each, _, _ in found])))))
        parents = _uuids(session, [each.parent_id for each, _, _ in found])
        views = [
            _device_view(device, row.name, holder,
                         children.get(device.id, ()),
                         parents.get(device.parent_id or 0))
            for device, row, holder in found]
    return tuple(
        each for each in views
        if variant in (None, each.variant)
        and state in (None, each.shown_state))


def device_show(db: api.Database, uuid: str) -> objects.DeviceInfo:
    """One device. :raises NotFound: no such UUID"""
    with db.reader() as session:
        return _show(session, device_db.get(session, uuid))


def _show(session: orm.Session,
          device: models.Device) -> objects.DeviceInfo:
    held = assignment_db.active(
        session, models.Assignment.device_id == device.id)
    children = _children(session.scalars(sa.select(models.Device).where(
        models.Device.parent_id == device.id)))
    return _device_view(
        device, session.get_one(models.Host, device.host_id).name,
        held[0].instance_uuid if held else None,
        children.get(device.id, ()),
        _uuids(session, [device.parent_id]).get(device.parent_id or 0))


def _children(devices: Iterable[models.Device],
              ) -> dict[int, list[models.Device]]:
    """What is carved out of devices of a group, by the id of the card."""
    found: dict[int, list[models.Device]] = collections.defaultdict(list)
    for device in devices:
        if device.parent_id is not None and device.group_id is not None:
            found[device.parent_id].append(device)
    return found


def _uuids(session: orm.Session,
           ids: Iterable[int | None]) -> dict[int, str]:
    wanted = {each for each in ids if each is not None}
    if not wanted:
        return {}
    return dict(session.execute(
        sa.select(models.Device.id, models.Device.uuid)
        .where(models.Device.id.in_(wanted))).tuples().all())


def _device_view(device: models.Device, host: str, used_by: str | None,
                 children: Sequence[models.Device],
                 parent: str | None) -> objects.DeviceInfo:
    facts = device_db.pci_function(device)
    return objects.DeviceInfo(
        uuid=device.uuid, host=host, stable_id=device.stable_id,
        address=device.address, state=device.state,
        variant=device.group.variant.name if device.group else None,
        shown_state=capacity.shown_state(device, children),
        enabled=device.enabled, kind=device.kind, parent=parent,
        vgpu_type=device.vgpu_type,
        present=device.present, used_by=used_by, reason=device.reason,
        generation=device.generation,
        **{name: getattr(facts, name) for name in _FACTS})


def device_set(db: api.Database, uuid: str, *,
               enabled: bool) -> objects.DeviceInfo:
    """Offer a device, or offer it no more (ConductorAPI.device_set)."""
    host_id = cleaning.host_id_of(db, uuid)

    def work(session: orm.Session) -> objects.DeviceInfo:
        host, device = cleaning.locked(session, host_id, uuid)
        if device.kind == 'mdev':
            raise exception.Conflict(
                kind='device', name=uuid,
                reason='it is a place for an mdev, of which its card has as '
                       'many as it needs; enable or disable the card')
        if device.enabled != enabled:
            device.enabled = enabled
            event_db.add(session, 'enable' if enabled else 'disable',
                         host.name, device)
            host_db.changed(host)
            inventory.refresh(session, host)
        return _show(session, device)
    return db.write(work)
