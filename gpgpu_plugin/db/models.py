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
"""The tables. What one device's row says is DESIGN of the whole plugin:

``state`` (life cycle), ``enabled`` (operator) and ``present`` (scan) are
three facts in three columns. At most one active assignment a device, and one
set of devices a (instance, host, slot), are unique keys: ``active`` is 1
while a holding lasts and NULL afterwards, and NULLs never collide.
"""

from __future__ import annotations

import datetime

import sqlalchemy as sa
from sqlalchemy import orm

_CONVENTION = {
    'ix': 'ix_%(table_name)s_%(column_0_N_name)s',
    'uq': 'uq_%(table_name)s_%(column_0_N_name)s',
    'ck': 'ck_%(table_name)s_%(constraint_name)s',
    'fk': 'fk_%(table_name)s_%(column_0_N_name)s',
    'pk': 'pk_%(table_name)s',
}

NAME = sa.String(255)
UUID = sa.String(36)
PCI_ID = sa.String(4)


class Base(orm.DeclarativeBase):
    """All tables, with named constraints."""

    metadata = sa.MetaData(naming_convention=_CONVENTION)


class Lock(Base):
    """Rows that are locked where no other row orders two writers.

    ``changes`` also holds the last number given to a changed host.
    """

    __tablename__ = 'locks'
    name: orm.Mapped[str] = orm.mapped_column(sa.String(32), primary_key=True)
    value: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=0)


class Host(Base):
    """A compute host.

    ``change_number`` is NULL from a change until the next reader of
    ``changes_since`` numbers it: numbers given by readers, under one lock,
    follow the order in which changes became visible.
    """

    __tablename__ = 'hosts'
    __table_args__ = (
        sa.UniqueConstraint('name', 'deleted'),
        sa.UniqueConstraint('node_uuid', 'deleted'),
        sa.Index(None, 'change_number'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(NAME)
    node: orm.Mapped[str] = orm.mapped_column(NAME)
    node_uuid: orm.Mapped[str] = orm.mapped_column(UUID)
    generation: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=0)
    change_number: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger)
    deleted: orm.Mapped[int] = orm.mapped_column(default=0)
    problems: orm.Mapped[str] = orm.mapped_column(sa.Text, default='[]')
    reported_at: orm.Mapped[datetime.datetime | None]


class Variant(Base):
    """A name for devices with certain ids."""

    __tablename__ = 'variants'
    __table_args__ = (sa.UniqueConstraint('name'),
                      sa.UniqueConstraint('normalized_name'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    normalized_name: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    vendor: orm.Mapped[str] = orm.mapped_column(PCI_ID)
    device: orm.Mapped[str] = orm.mapped_column(PCI_ID)
    subsystem_vendor: orm.Mapped[str | None] = orm.mapped_column(PCI_ID)
    subsystem: orm.Mapped[str | None] = orm.mapped_column(PCI_ID)
    revision: orm.Mapped[str | None] = orm.mapped_column(sa.String(2))
    type: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    resource_class: orm.Mapped[str] = orm.mapped_column(NAME)
    traits: orm.Mapped[str] = orm.mapped_column(sa.Text, default='[]')
    mix_policy: orm.Mapped[str] = orm.mapped_column(
        sa.String(16), default='same_type')
    enabled_types: orm.Mapped[str] = orm.mapped_column(
        sa.Text, default='["passthrough"]')


class Group(Base):
    """The cards of one variant on one host: one resource provider."""

    __tablename__ = 'host_gpu_groups'
    __table_args__ = (sa.UniqueConstraint('host_id', 'variant_id'),
                      sa.Index(None, 'variant_id'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    host_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey('hosts.id'))
    variant_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('variants.id'))
    provider_uuid: orm.Mapped[str] = orm.mapped_column(UUID)
    allocation_policy: orm.Mapped[str] = orm.mapped_column(
        sa.String(32), default='depth_first')
    variant: orm.Mapped[Variant] = orm.relationship(lazy='joined')
    types: orm.Mapped[list[VGPUType]] = orm.relationship(
        cascade='all, delete-orphan', order_by='VGPUType.id')


class VGPUType(Base):
    """What a group offers; ``passthrough`` is the whole card.

    ``listed``: it was enabled once, so that Placement knows its resource
    class, which then stays.
    """

    __tablename__ = 'vgpu_types'
    __table_args__ = (sa.UniqueConstraint('gpu_group_id', 'vgpu_type'),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    gpu_group_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('host_gpu_groups.id'))
    vgpu_type: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    video_ram: orm.Mapped[int | None]
    max_heads: orm.Mapped[int | None]
    max_resolution_x: orm.Mapped[int | None]
    max_resolution_y: orm.Mapped[int | None]
    max_vgpu_per_pgpu: orm.Mapped[int] = orm.mapped_column(default=1)
    max_capacity: orm.Mapped[int] = orm.mapped_column(default=0)
    remaining_capacity: orm.Mapped[int] = orm.mapped_column(default=0)
    enabled: orm.Mapped[bool] = orm.mapped_column(default=True)
    listed: orm.Mapped[bool] = orm.mapped_column(default=True)


class Device(Base):
    """A function that a host reported, or a seat for an mdev on it; without a
    group it is unmanaged.

    ``parent_id``: the PF of a VF, the card of a seat. ``kind``: ``pci`` or
    ``mdev``. ``vgpu_type`` and ``placement``: what is carved there, or may
    be, until it is available again.
    """

    __tablename__ = 'devices'
    __table_args__ = (sa.UniqueConstraint('uuid'),
                      sa.UniqueConstraint('host_id', 'stable_id'),
                      sa.Index(None, 'group_id'),
                      sa.Index(None, 'parent_id'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    uuid: orm.Mapped[str] = orm.mapped_column(UUID)
    host_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey('hosts.id'))
    group_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey('host_gpu_groups.id'))
    parent_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey('devices.id'))
    kind: orm.Mapped[str] = orm.mapped_column(sa.String(16), default='pci')
    vgpu_type: orm.Mapped[str | None] = orm.mapped_column(sa.String(64))
    placement_id: orm.Mapped[int | None]
    stable_id: orm.Mapped[str] = orm.mapped_column(NAME)
    address: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    state: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    enabled: orm.Mapped[bool] = orm.mapped_column(default=True)
    present: orm.Mapped[bool] = orm.mapped_column(default=True)
    reason: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    clean_token: orm.Mapped[str | None] = orm.mapped_column(UUID)
    facts: orm.Mapped[str] = orm.mapped_column(sa.Text)
    generation: orm.Mapped[int] = orm.mapped_column(default=0)
    group: orm.Mapped[Group | None] = orm.relationship()


class Assignment(Base):
    """One device held by one side of one instance; kept when it ended."""

    __tablename__ = 'assignments'
    __table_args__ = (
        sa.UniqueConstraint('uuid'),
        sa.UniqueConstraint('device_id', 'active'),
        sa.UniqueConstraint('instance_uuid', 'host_id', 'slot', 'ordinal',
                            'active', name='uq_assignments_claim_key'),
        sa.Index(None, 'host_id', 'active'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    uuid: orm.Mapped[str] = orm.mapped_column(UUID)
    device_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey('devices.id'))
    host_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey('hosts.id'))
    instance_uuid: orm.Mapped[str] = orm.mapped_column(UUID)
    slot: orm.Mapped[str] = orm.mapped_column(sa.String(36))
    ordinal: orm.Mapped[int]
    active: orm.Mapped[int | None]
    vgpu_type: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    resource_class: orm.Mapped[str] = orm.mapped_column(NAME)
    request: orm.Mapped[str] = orm.mapped_column(sa.Text)
    allocated: orm.Mapped[bool] = orm.mapped_column(default=False)
    project_id: orm.Mapped[str | None] = orm.mapped_column(NAME)
    user_id: orm.Mapped[str | None] = orm.mapped_column(NAME)
    claimed_at: orm.Mapped[datetime.datetime]
    lease_expires_at: orm.Mapped[float | None] = orm.mapped_column(
        sa.Double)
    ended_at: orm.Mapped[datetime.datetime | None]
    device: orm.Mapped[Device] = orm.relationship(lazy='joined')


class Event(Base):
    """The ledger: what happened to whom, in the transaction that did it."""

    __tablename__ = 'events'
    __table_args__ = (sa.Index(None, 'device_uuid'),
                      sa.Index(None, 'instance_uuid'))
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    at: orm.Mapped[datetime.datetime]
    kind: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    host: orm.Mapped[str | None] = orm.mapped_column(NAME)
    device_uuid: orm.Mapped[str | None] = orm.mapped_column(UUID)
    assignment_uuid: orm.Mapped[str | None] = orm.mapped_column(UUID)
    instance_uuid: orm.Mapped[str | None] = orm.mapped_column(UUID)
    detail: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
