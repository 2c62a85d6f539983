# SPDX-License-Identifier: Apache-2.0
"""Base of the conductor's RPC endpoint: what its methods work with."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable

from oslo_config import cfg

from gpgpu_plugin import context as gpgpu_context
from gpgpu_plugin.conductor import authors
from gpgpu_plugin.conductor import casts
from gpgpu_plugin.conductor import choices as choices_mod
from gpgpu_plugin.conductor import cleaning
from gpgpu_plugin.conductor import host_query
from gpgpu_plugin.conductor import refusal_events
from gpgpu_plugin.conductor import request_mix
from gpgpu_plugin.conductor import scheduler_feed
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.rpc import compute_api

_Context = gpgpu_context.RequestContext


class Endpoint:
    """Base of the endpoint: the database, and clients that notify hosts.

    :param wake: has what a call left to do for a variant done at once
    :param observer: called with the end of each cleaning
    :param refused: records what is refused; default one of its own
    :param requests: counts what schedulers are asked for; as ``refused``
    :param choices: what schedulers chose; as ``refused``
    """

    def __init__(self, conf: cfg.ConfigOpts, db: api.Database,
                 compute_api: compute_api.ComputeAPI,
                 wake: Callable[[], None] = lambda: None,
                 refused: refusal_events.RefusalEvents | None = None,
                 requests: request_mix.Requests | None = None,
                 observer: Callable[[cleaning.Ended], None] = (
                     lambda ended: None),
                 choices: choices_mod.Choices | None = None) -> None:
        self._conf = conf
        self._silent_after: float = conf_gpgpu.silent_after(conf)
        self._db = db
        self._wake = wake
        self._observer = observer
        self._compute_api = compute_api
        self._hosts = host_query.HostQuery(compute_api)
        self._feed = scheduler_feed.SchedulerFeed(db)
        self._refused = refused or refusal_events.RefusalEvents(db)
        self._requests = requests or request_mix.Requests(db)
        self._choices = choices or choices_mod.Choices()

    def _by_host(self, ctxt: _Context, host: str) -> api.Database:
        return self._db.by(authors.of_host(ctxt, host))

    def _by_operator(self, ctxt: _Context) -> api.Database:
        return self._db.by(authors.of_operator(ctxt))

    def _refresh(self, ctxt: _Context, hosts: Iterable[str]) -> None:
        for host in hosts:
            casts.notify(self._compute_api.refresh, ctxt, host)

    def _tell(self, ctxt: _Context, host: str) -> None:
        casts.notify(self._compute_api.assignments_changed, ctxt, host)
