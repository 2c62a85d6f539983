# SPDX-License-Identifier: Apache-2.0
"""Changes of variants, applied to the hosts that they concern.

The transaction that changes a variant locks no host. What it leaves to do is a
row of ``variant_changes``, so that any conductor can go on after a crash. Each
following transaction locks that row, then the next hosts in the order of their
ids, matches their devices again and notes how far it came. A host that is
locked is not waited for but done later, alone: only claims on the hosts of one
chunk wait for it. So is a host on which the change fails. Once only such hosts
lack the change, the variant can be claimed again: on them not before they have
reported, which matches their devices by the variant as it is now.

A report matches by the variants that it reads, and once more if they changed
meanwhile (``reports``). So a host that reports between two chunks, or whose
devices no chunk saw, is matched correctly.

To enable or disable a vGPU type on all hosts is such a change, too, which sets
the type in their groups and matches nothing. So is to let all groups have what
their variant has.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from collections.abc import Sequence

from oslo_log import log as logging
from sqlalchemy import orm

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import recleaning
from gpgpu_plugin.conductor import sessions
from gpgpu_plugin.conductor import settle
from gpgpu_plugin.conductor import variant_matching
from gpgpu_plugin.db import api
from gpgpu_plugin.db import event as event_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import host as host_db
from gpgpu_plugin.db import host_rows
from gpgpu_plugin.db import models
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.db import variant_change as change_db
from gpgpu_plugin.domain import variant as rules

LOG = logging.getLogger(__name__)

CHUNK = 50
"""Hosts that one transaction locks. Claims on them wait for its end."""

_ATTEMPTS = 3
"""Hosts that are locked, or on which the change fails, before the rest is left
for later."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Caller:
    """Whoever waits until a variant is changed.

    :ivar check_wanted: raises if the caller has given up; then nothing is
        changed
    :ivar is_over: returns whether the part of the caller's time is over in
        which the change is applied to hosts; the rest is left to
        ``variant_worker``
    :ivar tell: takes the names of hosts that changed
    """

    check_wanted: Callable[[], None] = lambda: None
    is_over: Callable[[], bool] = lambda: False
    tell: Callable[[Sequence[str]], None] = lambda hosts: None


PATIENT = Caller()
"""A caller who waits until all hosts have the change."""


class HostFailed(Exception):
    """The change cannot be applied to a host, for the reason of its cause."""

    def __init__(self, host: str) -> None:
        super().__init__(f'host {host}')


class _InUse(Exception):
    """An instance got a device of the variant before the change began."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        super().__init__(instance)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
    """The next part of a change.

    :ivar last_host_id, skipped: how far the change is; another conductor
        may be faster
    :ivar host_ids: hosts to do; none: all are done
    :ivar waits: for a lock of these hosts, which were locked before
    """

    change_id: int
    last_host_id: int
    skipped: Sequence[int]
    host_ids: Sequence[int]
    waits: bool

    def lock(self, session: orm.Session) -> models.VariantChange | None:
        """Return the change, locked, if this is its next part still."""
        change = change_db.lock(session, self.change_id)
        if change is None or (
                change.last_host_id, change_db.skipped(change)) != (
                    self.last_host_id, self.skipped):
            return None
        return change


def check_settled(session: orm.Session, row: models.Variant) -> None:
    """Refuse to change a variant of which some hosts lack the last change.

    :raises Conflict: it says how many hosts
    """
    change = change_db.of_variant(session, row.id)
    if change is not None:
        raise exception.Conflict(
            kind='variant', name=row.name,
            reason=f'its last change has yet to reach '
                   f'{change_db.hosts_pending(session, change)} hosts; wait '
                   f'until "gpgpu-manage variant show {row.name}" shows '
                   f'none, and try again')


def apply(db: api.Database, change_id: int, caller: Caller) -> None:
    """Apply a change to as many hosts as the caller's time allows.

    :raises Conflict: see run()
    """
    try:
        run(db, change_id, caller.tell, caller.is_over)
    except exception.Conflict:
        raise
    except Exception:
        # The change itself is made, and the worker applies it.
        LOG.exception('Cannot apply the change of a variant to all hosts now; '
                      'gpgpu-conductor tries again')


def run(db: api.Database, change_id: int,
        tell: Callable[[Sequence[str]], None],
        is_over: Callable[[], bool] = lambda: False) -> None:
    """Apply a change to its hosts until all have it, or the time is over.

    :param tell: takes the names of hosts that changed, after each chunk
    :param is_over: asked before each chunk; the rest is left for later
    :raises Conflict: an instance had got a device of the variant, so that the
        change was undone; the hosts are matched again later
    :raises DatabaseBusy: some hosts stay locked
    :raises HostFailed: on some hosts it fails
    """
    attempts = 0
    while not is_over():
        try:
            changed = advance(db, change_id)
        except (exception.DatabaseBusy, HostFailed):
            attempts += 1
            if attempts == _ATTEMPTS:
                raise
            continue
        if changed is None:
            return
        tell(changed)


def advance(db: api.Database, change_id: int) -> list[str] | None:
    """Do the next part of a change in one transaction.

    :returns: names of the hosts that changed; None if there is nothing to do,
        or another conductor is doing it
    """
    with db.reader() as session:
        part = _next_part(session, change_id)
    if part is None:
        return None
    if not part.host_ids:
        return db.write(functools.partial(_finish, part=part))
    try:
        return db.write(functools.partial(_apply, part=part))
    except exception.DatabaseBusy:
        db.write(functools.partial(_postpone, part=part))
        raise
    except _InUse as exc:
        conflict = db.write(functools.partial(
            _undo, part=part, instance=exc.instance))
        if conflict is not None:
            raise conflict from None
        return []
    except exception.ConductorUnavailable:
        raise
    except Exception as exc:
        # Of the database's driver, or of a rule: one host must not keep the
        # change from others, whatever it has reported.
        db.write(functools.partial(_postpone, part=part))
        if len(part.host_ids) > 1:
            return []
        name = db.write(functools.partial(_shut_out, part=part))
        raise HostFailed(name) from exc


def _next_part(session: orm.Session, change_id: int) -> _Part | None:
    """Return what to do next; None: all is done.

    In a transaction of its own: on MariaDB the one that waits for locks must
    not have read anything before.
    """
    change = session.get(models.VariantChange, change_id)
    if change is None:
        return None
    skipped = change_db.skipped(change)
    host_ids = change_db.next_hosts(session, change, CHUNK)
    waits = not host_ids and bool(skipped)
    return _Part(change_id=change.id, last_host_id=change.last_host_id,
                 skipped=skipped, waits=waits,
                 host_ids=skipped[:1] if waits else host_ids)


def _apply(session: orm.Session, part: _Part) -> list[str] | None:
    """Apply the change to the hosts of a part.

    :returns: names of the hosts that changed
    """
    change = part.lock(session)
    if change is None:
        return None
    hosts = host_db.lock_ids(
        session, part.host_ids, skip_locked=not part.waits)
    live = [host for host in hosts if not host.deleted]
    changed = _on_hosts(session, change, live)
    if part.waits:
        skipped = part.skipped[1:]
    else:
        change.last_host_id = part.host_ids[-1]
        locked = {host.id for host in hosts}
        skipped = [*part.skipped, *(
            host_id for host_id in part.host_ids if host_id not in locked)]
    change.skipped_hosts = json.dumps(skipped)
    return changed


def _on_hosts(session: orm.Session, change: models.VariantChange,
              hosts: Sequence[models.Host]) -> list[str]:
    """Apply the change to (locked) hosts.

    :returns: names of the hosts that changed
    """
    rows = host_rows.load(session, [host.id for host in hosts])
    if change.vgpu_type is not None:
        return [host.name for host in hosts if enable(
            session, host, rows[host.id], change.variant_id,
            change.vgpu_type, enabled=bool(change.enabled))]
    row = session.get_one(models.Variant, change.variant_id)
    variants = variant_matching.Variants.load(session)
    if not variant_db.status(row).is_claimable:
        for of_host in rows.values():
            for assignment in of_host.assignments:
                group = of_host.group_of(assignment.device)
                if group is not None and group.variant_id == row.id:
                    raise _InUse(assignment.instance_uuid)
    before = {host.id: host.generation for host in hosts}
    for host in hosts:
        now = rows[host.id]
        if change_db.matches(change):
            # What a group shows of its variant changes, too.
            if change.before is not None and any(
                    group.variant_id == row.id
                    for group in now.empty_groups):
                host_db.changed(host)
            now = recleaning.try_variant_again(variant_matching.apply(
                session, host, now, variants), row.id)
        settle.settle(session, host, rows[host.id], _inherited(
            now, row, clears=change.clears_groups))
    return [host.name for host in hosts
            if host.generation != before[host.id]]


def _inherited(rows: host_rows.HostRows, variant: models.Variant, *,
               clears: bool) -> host_rows.HostRows:
    """Return the rows with groups that have what their variant has.

    No host has a copy. Schedulers have one, by which they predict what a
    claim takes.

    :param clears: whether groups lose what they have of their own
    """
    return rows.put_groups([
        dataclasses.replace(
            group, own_policy=False,
            allocation_policy=variant.allocation_policy)
        if group.variant_id == variant.id and (
            clears or not group.own_policy) else group
        for group in rows.empty_groups])


def enable(session: orm.Session, host: models.Host,
           rows: host_rows.HostRows, variant_id: int, vgpu_type: str, *,
           enabled: bool) -> bool:
    """Enable or disable a type of a variant on a (locked) host.

    :returns: whether the host changed
    """
    groups = [
        group if group.variant_id != variant_id
        else dataclasses.replace(group, types=[
            dataclasses.replace(row, enabled=enabled,
                                listed=row.listed or enabled)
            if row.vgpu_type == vgpu_type else row for row in group.types])
        for group in rows.empty_groups]
    if groups == list(rows.empty_groups):
        return False
    # Whether guests can get whole GPUs decides which must be clean.
    settle.settle(session, host, rows, recleaning.clean_again(
        rows.put_groups(groups)))
    return True


def _shut_out(session: orm.Session, part: _Part) -> str:
    """Let the only host of a part, where the change failed, delay no claims.

    :returns: its name
    """
    host_db.lock_row(session, 'variants')
    change = change_db.lock(session, part.change_id)
    [host] = host_db.lock_ids(session, part.host_ids)
    if change is None:
        return host.name
    variant = session.get_one(models.Variant, change.variant_id)
    if variant.status == rules.Status.CHANGING:
        sessions.renew(host)
        session.flush()
        if not change_db.next_hosts(session, change, 1) and all(
                _is_shut_out(other) for other in host_db.by_ids(
                    session, change_db.skipped(change))):
            variant.status = str(rules.Status.APPLYING)
    return host.name


def _is_shut_out(host: models.Host) -> bool:
    """Return whether a host can claim nothing before it has reported.

    It may have begun a new session, whose reports fail as the change does.
    """
    return host.start_uuid is None or not host.report_number


def _postpone(session: orm.Session, part: _Part) -> None:
    """Leave for later what exceeded a limit, or failed.

    A host that stays locked goes behind the others; the hosts of a chunk are
    done one by one.
    """
    change = part.lock(session)
    if change is None:
        return
    if part.waits:
        skipped = [*part.skipped[1:], part.skipped[0]]
    else:
        skipped = [*part.skipped, *part.host_ids]
        change.last_host_id = part.host_ids[-1]
    change.skipped_hosts = json.dumps(skipped)


def _finish(session: orm.Session, part: _Part) -> list[str] | None:
    """End a change that all hosts have."""
    host_db.lock_row(session, 'variants')
    change = part.lock(session)
    if change is None:
        return None
    variant = session.get_one(models.Variant, change.variant_id)
    is_deleted = variant.status == rules.Status.DELETING
    if is_deleted and group_db.host_ids_of_variant(
            session, variant.id, after=0, limit=1):
        # The report of a host that was done created it at the same time.
        change.last_host_id = 0
        return []
    session.delete(change)
    session.flush()
    if is_deleted:
        session.delete(variant)
    else:
        variant.status = str(rules.Status.READY)
    return []


def _undo(session: orm.Session, part: _Part,
          instance: str) -> exception.Conflict | None:
    """Undo a change; all hosts that it concerns are matched again.

    :returns: what to tell whoever made the change
    """
    variant_db.lock(session)
    change = part.lock(session)
    if change is None:
        return None
    variant = session.get_one(models.Variant, change.variant_id)
    value = change_db.before(change)
    assert value is not None
    variant_db.fill(variant, value)
    what = ('deletion' if variant.status == rules.Status.DELETING
            else 'change')
    variant.status = str(rules.Status.APPLYING)
    variant.reason = (
        f'instance {instance} got a device of this variant at the same time; '
        f'the {what} was undone. Groups that it had deleted are created '
        f'again with the allocation policy and types of the variant')
    change.last_host_id, change.skipped_hosts = 0, '[]'
    event_db.add(session, 'variant_undo', detail=json.dumps(
        {'name': variant.name, 'reason': variant.reason}))
    LOG.warning('Variant %s: %s', variant.name, variant.reason)
    return exception.Conflict(
        kind='variant', name=variant.name, reason=variant.reason)
