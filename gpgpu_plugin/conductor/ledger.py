# SPDX-License-Identifier: Apache-2.0
"""The ledger of cleanings: records, added with what they record.

All functions run in a transaction that locked the device's host.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from sqlalchemy import orm

from gpgpu_plugin.db import assignment as assignment_db
from gpgpu_plugin.db import clock
from gpgpu_plugin.db import device as device_db
from gpgpu_plugin.db import group as group_db
from gpgpu_plugin.db import ledger as ledger_db
from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.domain import ledger as rules


def start(session: orm.Session, device: device_db.DeviceRow) -> None:
    """Note that the cleaning of a device begins now."""
    ledger_db.start(session, device.uuid, clock.utc(session))


def add(session: orm.Session, host: str, device: device_db.DeviceRow,
        verdict: rules.Verdict, *, reason: str | None,
        steps: Sequence[str] = (),
        results: Sequence[cleaning.StepResult] = (),
        actor: str | None = None) -> float | None:
    """Add a record to the chain of a device.

    :param host: name of its host
    :param device: as it was when it got the verdict, with its tokens
    :returns: seconds since the cleaning began; None: it is not known when
    """
    now = clock.utc(session)
    end = ledger_db.chain(session, device.uuid)
    began, settings = end.started_at, end.settings
    last = assignment_db.last_of_device(session, device.id)
    variant, policy = group_db.policy(session, device.group_id)
    if verdict is rules.Verdict.PASSED:
        for result in _settings(results):
            settings = json.dumps(result.facts, sort_keys=True)
    elif verdict is rules.Verdict.RELEASED:
        # The operator accepts the device as it is.
        settings = None
    ledger_db.add(session, end, rules.record(rules.Entry(
        device_uuid=device.uuid, number=end.number + 1,
        previous_hash=end.hash or '', host=host,
        stable_id=device.stable_id, address=device.address,
        serial=device_db.pci_function(device).serial,
        variant=variant, verdict=str(verdict), reason=reason, policy=policy,
        steps=tuple(steps), results=tuple(results),
        request=device.clean_token, attempt=device.clean_attempt,
        assignment_uuid=last.uuid if last else None,
        instance_uuid=last.instance_uuid if last else None,
        project_id=last.project_id if last else None, actor=actor,
        started_at=_text(began) if began else None,
        finished_at=_text(now))), settings)
    # The clock may have been set back.
    return max(0.0, (now - began).total_seconds()) if began else None


def seconds_of_last(session: orm.Session,
                    devices: Collection[str]) -> dict[str, float]:
    """Return how long the last cleaning of devices took, if it passed.

    :param devices: UUIDs
    :returns: by UUID
    """
    found = {}
    for content in ledger_db.last(session, devices):
        fields = json.loads(content)
        if (fields['verdict'] == rules.Verdict.PASSED
                and fields['started_at'] is not None):
            # The clock may have been set back.
            found[fields['device_uuid']] = max(0.0, (
                _time(fields['finished_at']) - _time(fields['started_at'])
            ).total_seconds())
    return found


def compared(session: orm.Session, device: device_db.DeviceRow,
             results: Sequence[cleaning.StepResult],
             ) -> tuple[cleaning.StepResult, ...]:
    """Return results in which changed settings are a failure.

    The host compares them with its own baseline, which may be lost, or
    written by whoever took over the host. This compares them with what the
    last cleaning that passed found.
    """
    settings = ledger_db.chain(session, device.uuid).settings
    if settings is None:
        return tuple(results)
    before = cleaning.StepResult(
        step=cleaning.SETTINGS, outcome=cleaning.StepOutcome.PASSED, reason='',
        facts=json.loads(settings))
    return tuple(_judged(before, result) for result in results)


def _judged(before: cleaning.StepResult,
            result: cleaning.StepResult) -> cleaning.StepResult:
    changes = cleaning.changed_settings(before, result) if (
        _settings([result])) else []
    if not changes:
        return result
    return dataclasses.replace(
        result, outcome=cleaning.StepOutcome.FAILED,
        reason=f'it differs from what the last cleaning that passed '
               f'found: '
               f'{"; ".join(changes)}')


def _settings(results: Iterable[cleaning.StepResult],
              ) -> list[cleaning.StepResult]:
    """Return the results of the step settings that passed."""
    return [result for result in results
            if result.step == cleaning.SETTINGS
            and result.outcome is cleaning.StepOutcome.PASSED]


def _text(at: datetime.datetime) -> str:
    return at.isoformat(timespec='seconds') + 'Z'


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=None)
