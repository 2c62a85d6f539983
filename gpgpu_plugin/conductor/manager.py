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
"""The RPC endpoint: from primitives to a function of the right module.

Meaning, errors and arguments of each method are those of
``conductor.rpcapi.ConductorAPI``. Nothing is decided here but who is
driver_capacities: what an operator changes is cast to the hosts concerned.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from collections.abc import Iterable

import oslo_messaging
from oslo_config import cfg
from oslo_log import log as logging

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin import exception
from gpgpu_plugin.conductor import allocation_sync
from gpgpu_plugin.conductor import claims
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import inventory
from gpgpu_plugin.conductor import reports as report_mod
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conductor.admin import operators
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.conductor.admin import vgpu_type as vgpu_type_admin
from gpgpu_plugin.db import api
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.domain.vgpu import vgpu_type
from gpgpu_plugin.objects import admin as view_obj
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import report as report_obj
from gpgpu_plugin.rpc import compute_api
from gpgpu_plugin.rpc import conductor_api

LOG = logging.getLogger(__name__)

_Context = gpgpu_context.RequestContext
_Primitive = typing.Any
_F = typing.TypeVar('_F', bound=Callable[..., typing.Any])


def _call(method: _F) -> _F:
    """Answer with primitives; our own errors are answers, not accidents."""
    @functools.wraps(method)
    def answer(*args: typing.Any, **kwargs: typing.Any) -> _Primitive:
        return codec.to_primitive(method(*args, **kwargs))
    return typing.cast(_F, oslo_messaging.expected_exceptions(
        exception.GpgpuException)(answer))


def _driver_capacities(
    value: _Primitive,
) -> report_obj.DriverCapacities | None:
    return None if value is None else codec.from_primitive(
        dict[str, vgpu_type.DriverCapacity], value)


class ConductorManager:
    """Version 1.0 of the conductor's API."""

    target = oslo_messaging.Target(version=conductor_api.VERSION)

    def __init__(self, conf: cfg.ConfigOpts, db: api.Database,
                 compute_api: compute_api.ComputeAPI) -> None:
        self._conf = conf
        self._db = db
        self._compute_api = compute_api

    def _refresh(self, ctxt: _Context, hosts: Iterable[str]) -> None:
        for host in hosts:
            self._compute_api.refresh(ctxt, host)

    # -- the compute side ---------------------------------------------------

    @_call
    def report(self, ctxt: _Context, report: _Primitive) -> object:
        return report_mod.report(self._db, codec.from_primitive(
            report_obj.HostReport, report))

    @_call
    def host_inventory(self, ctxt: _Context, host: str) -> object:
        with self._db.reader() as session:
            return inventory.of_host(session, host_db.get(session, host))

    @_call
    def claim(self, ctxt: _Context, request: _Primitive) -> object:
        asked = codec.from_primitive(claim_obj.ClaimRequest, request)
        try:
            claim = claims.claim(
                self._db, asked, lease=self._conf.gpgpu.claim_lease)
        except exception.ClaimDenied as exc:
            LOG.info('%s', exc)
            raise
        if asked.slot != claim_obj.SLOT_BUILD:
            # The source of a migration claims for its destination.
            self._refresh(ctxt, [asked.host])
        return claim

    @_call
    def activate(self, ctxt: _Context, assignments: list[str],
                 driver_capacities: _Primitive) -> object:
        return claims.activate(
            self._db, assignments, _driver_capacities(driver_capacities)
        )

    @_call
    def abort(self, ctxt: _Context, assignments: list[str], touched: bool,
              fault: str | None, driver_capacities: _Primitive) -> object:
        view = claims.abort(
            self._db, assignments, touched=touched, fault=fault,
            driver_capacities=_driver_capacities(driver_capacities))
        if touched and view is not None:
            # The source of a migration ends it for its destination, which is
            # to clean.
            self._refresh(ctxt, [view.host])
        return view

    @_call
    def release(self, ctxt: _Context, assignments: list[str]) -> object:
        return claims.release(self._db, assignments)

    @_call
    def host_assignments(self, ctxt: _Context, host: str) -> object:
        return claims.of_host(self._db, host)

    @_call
    def compare_allocations(
            self, ctxt: _Context, host: str,
            allocations: dict[str, dict[str, dict[str, int]]],
            assignments: list[str]) -> object:
        return allocation_sync.compare(
            self._db, host, allocations, assignments
        )

    @_call
    def instance_assignments(self, ctxt: _Context,
                             instance_uuid: str) -> object:
        return claims.of_instance(self._db, instance_uuid)

    @_call
    def clean_tasks(self, ctxt: _Context, host: str) -> object:
        return cleaning.tasks(self._db, host)

    @_call
    def clean_started(self, ctxt: _Context, device_uuid: str,
                      token: str) -> object:
        cleaning.started(self._db, device_uuid, token)
        return None

    @_call
    def clean_finished(self, ctxt: _Context, device_uuid: str, token: str,
                       passed: bool, evidence: str,
                       driver_capacities: _Primitive) -> object:
        return cleaning.finished(self._db, device_uuid, token,
                                 passed=passed, evidence=evidence,
                                 driver_capacities=_driver_capacities(driver_capacities))

    # -- the scheduler ------------------------------------------------------

    @_call
    def changes_since(self, ctxt: _Context, generation: int) -> object:
        return scheduler_feed.changes_since(self._db, generation)

    # -- operators ----------------------------------------------------------

    @_call
    def variant_create(self, ctxt: _Context, variant: _Primitive) -> object:
        view, hosts = variant_admin.create(self._db, codec.from_primitive(
            view_obj.VariantInfo, variant))
        self._refresh(ctxt, hosts)
        return view

    @_call
    def variant_list(self, ctxt: _Context) -> object:
        return variant_admin.list_all(self._db)

    @_call
    def variant_show(self, ctxt: _Context, name: str) -> object:
        return variant_admin.show(self._db, name)

    @_call
    def variant_set(self, ctxt: _Context, variant: _Primitive) -> object:
        view, hosts = variant_admin.set_(self._db, codec.from_primitive(
            view_obj.VariantInfo, variant))
        self._refresh(ctxt, hosts)
        return view

    @_call
    def variant_delete(self, ctxt: _Context, name: str) -> object:
        self._refresh(ctxt, variant_admin.delete(self._db, name))
        return None

    @_call
    def vgpu_type_list(self, ctxt: _Context, host: str | None,
                       variant: str | None) -> object:
        return vgpu_type_admin.list_all(self._db, host, variant)

    @_call
    def vgpu_type_set(self, ctxt: _Context, variant: str, vgpu_type: str,
                      host: str | None, enabled: bool) -> object:
        types, hosts = vgpu_type_admin.set_enabled(
            self._db, variant, vgpu_type, host, enabled=enabled)
        self._refresh(ctxt, hosts)
        return types

    @_call
    def host_list(self, ctxt: _Context) -> object:
        return operators.host_list(self._db)

    @_call
    def host_show(self, ctxt: _Context, host: str) -> object:
        return operators.host_list(self._db, host)[0]

    @_call
    def host_delete(self, ctxt: _Context, host: str,
                    force: bool) -> object:
        if not force:
            operators.check_not_running(
                self._db, host,
                lambda: self._compute_api.ping(ctxt, host))
        operators.host_delete(self._db, host)
        # Whoever serves the host all the same reports it anew.
        self._refresh(ctxt, [host])
        return None

    @_call
    def group_list(self, ctxt: _Context, host: str | None,
                   variant: str | None) -> object:
        return operators.group_list(self._db, host, variant)

    @_call
    def group_set(self, ctxt: _Context, host: str, variant: str,
                  allocation_policy: str) -> object:
        return operators.group_set(
            self._db, host, variant, allocation_policy)

    @_call
    def device_list(self, ctxt: _Context, host: str | None,
                    variant: str | None, state: str | None,
                    used_by: str | None) -> object:
        return operators.device_list(
            self._db, host, variant, state, used_by)

    @_call
    def device_show(self, ctxt: _Context, device: str) -> object:
        return operators.device_show(self._db, device)

    @_call
    def device_set(self, ctxt: _Context, device: str,
                   enabled: bool) -> object:
        view = operators.device_set(self._db, device, enabled=enabled)
        self._refresh(ctxt, [view.host])
        return view

    @_call
    def device_release(self, ctxt: _Context, device: str) -> object:
        host = cleaning.operator_release(self._db, device)
        self._refresh(ctxt, [host])
        return operators.device_show(self._db, device)
